"use strict";
// Carry on without being asked.
document.querySelectorAll("form.dq-ongoing").forEach((form) => form.submit());
