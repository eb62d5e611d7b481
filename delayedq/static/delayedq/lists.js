"use strict";
// Tick all messages of a page at once.
document.querySelectorAll(".dq-tick-all").forEach((all) => {
    all.addEventListener("change", () => {
        all.closest("table").querySelectorAll(".action-select").forEach((box) => { box.checked = all.checked; });
    });
});
