"use strict";
// Post the next part at once; the button is for browsers without scripts.
document.querySelectorAll("form.dq-ongoing").forEach((form) => form.submit());
