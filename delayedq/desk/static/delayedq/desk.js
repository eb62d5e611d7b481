"use strict";

// Parts of a page that change are replaced while it is looked at; what its reader holds is renewed while it is open.
// All of it works without. Words come from the page, in its language.
{
    class SignedOut extends Error {}
    const fetched = async (url, options) => {
        const answer = await fetch(url, { credentials: "same-origin", ...options });
        if (answer.redirected) throw new SignedOut();
        return answer;
    };

    // The token of the forms: signing in, also in another tab, makes another one. Each refresh brings it; where a script
    // may read its cookie, it is read besides as a form is sent.

    const TOKEN = "[name=csrfmiddlewaretoken]", cookie = document.currentScript.dataset.csrfCookie;

    function setToken(page, token) {
        if (token) page.querySelectorAll(TOKEN).forEach((one) => { one.value = token; });
    }
    function readToken() {
        const found = cookie && document.cookie.split("; ").findLast((one) => one.startsWith(`${cookie}=`));
        setToken(document, found?.slice(cookie.length + 1));
    }
    document.addEventListener("submit", readToken);

    // Live

    const isBusy = (part) => part.contains(document.activeElement) && document.activeElement.matches("input, select, textarea")
        || part.querySelector("input[type=checkbox]:checked");

    // What a link or a button is known by in the part that replaces its own.
    const name = (one) => one.id || one.rel || one.getAttribute("href") || one.textContent;

    function replace(page) {
        document.querySelectorAll("[data-live]").forEach((old) => {
            const fresh = page.getElementById(old.id), focused = old.contains(document.activeElement) && name(document.activeElement);
            if (!fresh || isBusy(old) || fresh.innerHTML === old.innerHTML) return;
            old.innerHTML = fresh.innerHTML;
            if (focused) [...old.querySelectorAll("a, button")].find((one) => name(one) === focused)?.focus({ preventScroll: true });
        });
    }

    function live(control) {
        const words = control.dataset, state = document.createElement("span"), button = document.createElement("button");
        let isOn = sessionStorage.getItem("dq-live") !== "off";
        const show = (text) => {
            state.textContent = text ?? (isOn ? words.on : words.off);
            button.textContent = isOn ? words.pause : words.resume;
            control.classList.toggle("dq-on", isOn && text === undefined);
        };
        async function refresh() {
            if (!isOn || document.visibilityState !== "visible") return;
            try {
                const answer = await fetched(words.from ?? location.href);
                if (!answer.ok) throw new Error(answer.statusText);
                const page = new DOMParser().parseFromString(await answer.text(), "text/html");
                const token = page.querySelector(TOKEN)?.value;
                for (const one of [page, document]) setToken(one, token);
                if (getSelection().isCollapsed) replace(page);
                show();
            } catch (error) {
                show(error instanceof SignedOut ? words.signedOut : words.failed);
            }
        }
        button.type = "button";
        button.addEventListener("click", () => {
            isOn = !isOn;
            sessionStorage.setItem("dq-live", isOn ? "on" : "off");
            show();
            refresh();
        });
        control.replaceChildren(state, button);
        document.addEventListener("visibilitychange", refresh);
        const again = () => setTimeout(async () => { await refresh(); again(); }, words.seconds * 1000);
        show();
        again();
    }
    document.querySelectorAll(".dq-desk-live").forEach(live);

    // Renewal. Who has lost the item is told so, and keeps what they have typed.

    const held = document.querySelector("[data-renew]");

    async function renew() {
        const body = new FormData();
        readToken();
        body.set("csrfmiddlewaretoken", held.querySelector(TOKEN).value);
        const answer = await fetch(held.dataset.renew, { method: "POST", body, credentials: "same-origin" });
        if (answer.status >= 500) return; // it is tried again
        const lost = held.querySelector(".dq-desk-lost"), isRenewed = answer.status === 204;
        const text = isRenewed ? "" : answer.status === 409 ? await answer.text() : held.dataset.lost;
        if (lost.textContent !== text) lost.textContent = text; // else it would be read aloud each time
        lost.hidden = isRenewed;
    }
    if (held) setInterval(() => renew().catch(() => {}), held.dataset.seconds * 1000);
}
