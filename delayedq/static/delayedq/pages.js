"use strict";

// What the pages do besides, where scripts run; all of it works without. Words come from the page, in its language.
{
    const words = JSON.parse(document.getElementById("dq-words").textContent);
    const FRAGMENT = { headers: { "X-Delayedq-Fragment": "yes" } };
    const said = (text, value) => text.replace("%s", value);

    class SignedOut extends Error {}

    async function fetched(url) {
        const answer = await fetch(url, FRAGMENT);
        if (answer.redirected && new URL(answer.url).pathname !== new URL(url, location.href).pathname) throw new SignedOut();
        if (!answer.ok) throw new Error(answer.statusText);
        return new DOMParser().parseFromString(await answer.text(), "text/html");
    }

    // Ticks: one box for all of a page; the number of them; a click anywhere beside the links of a row.

    const boxes = () => [...document.querySelectorAll("#result_list .action-select")];
    const everything = () => document.querySelector("[name=everything]");
    const ticked = () => boxes().filter((box) => box.checked).length;

    function tell() {
        const number = ticked(), bar = document.querySelector(".dq-actions-bar");
        if (!bar) return;
        bar.querySelector(".dq-ticked").textContent = number ? said(words.ticked, number.toLocaleString(document.documentElement.lang)) : "";
        bar.querySelectorAll("button").forEach((button) => { button.hidden = !number && !everything()?.checked; });
    }

    document.addEventListener("change", ({ target }) => {
        if (target.matches(".dq-tick-all")) boxes().forEach((box) => { box.checked = target.checked; });
        if (target.matches(".dq-tick-all, .action-select, [name=everything]")) tell();
    });
    addEventListener("pageshow", tell);

    // What is wider than its place says so.

    const wider = () => document.querySelectorAll(".dq-wider").forEach((hint) => {
        const graph = hint.parentNode.querySelector(".dq-graph");
        hint.hidden = graph.scrollWidth <= graph.clientWidth;
    });
    addEventListener("resize", wider);
    wider();

    // A field suggests names when it is entered. They have a page of their own, to which the link beside it goes.

    function suggest(input, page) {
        const names = [...page.querySelectorAll("[data-name]")].map(({ dataset }) => dataset.name);
        input.list.replaceChildren(...names.map((name) => new Option("", name)));
    }

    document.querySelectorAll("input[data-names]").forEach((input) => input.addEventListener("focus", () => {
        // Where they can't be fetched, it is a text as any other.
        fetched(input.dataset.names).then((page) => suggest(input, page)).catch(() => {});
    }, { once: true }));

    // A bulk edit that takes several requests goes on by itself.

    document.querySelectorAll("form.dq-ongoing").forEach((form) => form.submit());

    // How far away is what was typed?

    // To the smallest unit that is shown, as `wording.span` does.
    function rounded(seconds) {
        const sizes = words.units.map(([unit]) => unit);
        const first = sizes.findIndex((unit) => seconds >= unit);
        const shown = sizes[seconds >= 10 * sizes[first] ? first : first + 1] ?? 1;
        return Math.floor((seconds + Math.floor(shown / 2)) / shown) * shown;
    }

    function span(exact) {
        const seconds = rounded(exact);
        const [first, second] = words.units.flatMap(([unit, name], number) => {
            const left = number ? seconds % words.units[number - 1][0] : seconds;
            return left >= unit ? [[Math.floor(left / unit), name, number]] : [];
        });
        if (!first) return `0 ${words.units.at(-1)[1]}`;
        const more = second && first[0] < 10 && second[2] === first[2] + 1 ? ` ${second[0]} ${second[1]}` : "";
        return `${first[0].toLocaleString(document.documentElement.lang)} ${first[1]}${more}`;
    }

    function relative(moment) {
        const seconds = Math.round((moment - Date.now()) / 1000);
        if (!seconds) return words.now;
        return said(seconds > 0 ? words.ahead : words.ago, span(Math.abs(seconds)));
    }

    // The offset of a time zone from UTC at a moment, in milliseconds.
    function offset(moment, zone) {
        const numeric = { year: "numeric", month: "numeric", day: "numeric", hour: "numeric", minute: "numeric", second: "numeric" };
        const parts = new Intl.DateTimeFormat("en-US", { ...numeric, timeZone: zone, hourCycle: "h23" }).formatToParts(moment);
        const { year, month, day, hour, minute, second } = Object.fromEntries(parts.map(({ type, value }) => [type, value]));
        return Date.UTC(year, month - 1, day, hour, minute, second) - Math.floor(moment / 1000) * 1000;
    }

    function distance(input) {
        const { zone } = input.closest("[data-zone]").dataset, asUtc = Date.parse(`${input.value}Z`);
        const first = asUtc - offset(asUtc || 0, zone);
        return asUtc ? relative(asUtc - offset(first, zone)) : "";
    }

    function measure() {
        document.querySelectorAll(".dq-moment input").forEach((input) => {
            input.parentNode.querySelector(".dq-eta").textContent = distance(input);
        });
    }
    document.addEventListener("input", measure);
    setInterval(measure, 1000);

    // What a confirmation would do is shown again when something else is entered.

    const confirmation = document.querySelector(".dq-form:has([name=preview])");
    confirmation?.addEventListener("change", async () => {
        const body = new FormData(confirmation);
        body.set("preview", "yes");
        const answer = await fetch("", { ...FRAGMENT, method: "POST", body });
        if (answer.ok) replace(new DOMParser().parseFromString(await answer.text(), "text/html"));
    });

    // Keys: a letter goes nowhere while something is typed, and whoever speaks to their browser can switch them off.

    const keys = {}, hasKeys = () => localStorage.getItem("dq-keys") !== "off";
    document.addEventListener("keydown", (event) => {
        if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented || !hasKeys()) return;
        if (event.target.closest?.("input, select, textarea, dialog, [contenteditable]") || !keys[event.key]) return;
        event.preventDefault();
        keys[event.key]();
    });

    const find = document.querySelector(".dq-find");
    if (find) {
        const button = document.createElement("button");
        const show = () => {
            button.textContent = words.keys;
            button.setAttribute("aria-pressed", hasKeys());
        };
        keys["/"] = () => find.querySelector("input").focus();
        button.type = "button";
        button.title = words.keys_do;
        button.className = "dq-keys";
        button.addEventListener("click", () => { localStorage.setItem("dq-keys", hasKeys() ? "off" : "on"); show(); });
        find.append(button);
        show();
    }

    // Live: the parts of the page that change are replaced, while the page is looked at and nothing is being chosen.

    const rowsOf = (part) => new Map([...part.querySelectorAll("tbody tr")].flatMap((row) => {
        const link = row.querySelector("a.dq-open");
        return link && !row.className ? [[link.href, row]] : [];
    }));

    // Rows that were not there before are marked until the next time, and their number is said.
    function mark(old, before) {
        const fresh = [...rowsOf(old)].filter(([href]) => !before.has(href)).map(([, row]) => row);
        fresh.forEach((row) => row.classList.add("dq-new"));
        return fresh.length;
    }

    function replace(page) {
        let added = 0;
        document.querySelectorAll("[data-live]").forEach((old) => {
            old.querySelectorAll(".dq-new").forEach((row) => row.removeAttribute("class"));
            const fresh = page.getElementById(old.id), before = rowsOf(old);
            if (fresh && fresh.innerHTML !== old.innerHTML) {
                old.innerHTML = fresh.innerHTML;
                added += mark(old, before);
            }
        });
        document.dispatchEvent(new CustomEvent("dq-refreshed", { detail: page }));
        tell();
        return added;
    }

    const isBusy = () => ticked() || everything()?.checked || document.querySelector("dialog[open]")
        || document.activeElement.closest("[data-live], .dq-filters") || !getSelection().isCollapsed;

    function live(control) {
        const { seconds } = control.dataset, state = document.createElement("span"), button = document.createElement("button");
        let isOn = sessionStorage.getItem("dq-live") !== "off";
        const show = (text, isFine = text === undefined) => {
            state.textContent = text ?? (isOn ? said(words.live, seconds) : words.paused);
            button.textContent = isOn ? words.pause : words.resume;
            control.classList.toggle("dq-on", isOn && isFine);
        };
        button.type = "button";
        button.setAttribute("aria-keyshortcuts", "p");
        keys.p = () => button.click();
        button.addEventListener("click", () => {
            isOn = !isOn;
            sessionStorage.setItem("dq-live", isOn ? "on" : "off");
            show();
            if (isOn) refresh();
        });
        async function refresh() {
            if (!isOn || document.visibilityState !== "visible") return;
            if (isBusy()) return show(words.held);
            try {
                const page = await fetched(location.href);
                const added = isBusy() ? 0 : replace(page);
                if (added) show(said(words.added, added.toLocaleString(document.documentElement.lang)), true);
                else show();
            } catch (error) {
                show(error instanceof SignedOut ? words.signed_out : words.failed);
            }
        }
        const again = () => setTimeout(async () => { await refresh(); again(); }, seconds * 1000);
        control.replaceChildren(state, button);
        document.addEventListener("visibilitychange", refresh);
        show();
        again();
    }
    document.querySelectorAll(".dq-live").forEach(live);

    // A message opens in a pane beside the list, which keeps its place.

    function pane(link, page) {
        const dialog = document.createElement("dialog"), bar = document.createElement("p"), close = document.createElement("button");
        const whole = Object.assign(document.createElement("a"), { href: link.href, textContent: words.open });
        close.type = "button";
        close.className = "button";
        close.textContent = words.close;
        close.addEventListener("click", () => dialog.close());
        bar.className = "dq-pane-bar";
        bar.append(whole, close);
        dialog.className = "dq-pane";
        dialog.setAttribute("aria-label", link.textContent.trim());
        dialog.append(bar, ...page.body.children);
        dialog.querySelectorAll("[name=back]").forEach((back) => { back.value = location.pathname + location.search; });
        dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
        dialog.addEventListener("close", () => { dialog.remove(); link.focus(); link.blur(); });
        document.querySelector(".dq").append(dialog);
        dialog.showModal();
    }

    document.addEventListener("click", (event) => {
        const link = event.target.closest("a.dq-open");
        if (!link || link.closest("dialog") || event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
        event.preventDefault();
        fetched(link.href).then((page) => pane(link, page)).catch(() => { location.href = link.href; });
    });
}
