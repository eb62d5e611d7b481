"use strict";
// Lists refresh themselves, unless somebody is about to use them; a page that shows what its reader holds renews that.
const main = document.querySelector("main");
const seconds = 1000;

async function refresh() {
  if (document.hidden || main.contains(document.activeElement)) return;
  const answer = await fetch(location.href, { credentials: "same-origin" });
  if (!answer.ok || answer.redirected) return;
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  main.replaceChildren(...page.querySelector("main").childNodes);
}

async function renew() {
  const token = main.querySelector("[name=csrfmiddlewaretoken]").value;
  await fetch(main.dataset.renew, { method: "POST", credentials: "same-origin", headers: { "X-CSRFToken": token } });
}

if ("live" in main.dataset) setInterval(() => refresh().catch(() => {}), 10 * seconds);
if ("renew" in main.dataset) setInterval(() => renew().catch(() => {}), 300 * seconds);
