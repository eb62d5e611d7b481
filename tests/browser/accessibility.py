"""Whether a page can be read and used by everybody, and the looks in which it is tried."""

from __future__ import annotations

import os
from pathlib import Path

from tests.missing import missing
from tests.nightly import few_of

AXE = Path(os.environ.get("DELAYEDQ_TEST_AXE") or ".cache/axe/node_modules/axe-core/axe.min.js")
LEVELS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]
#: In another language, width or theme, only the rules that it may break: these take most of the time. Contrast is a
#: matter of the theme alone; what else axe-core looks at, of the language and the width, but not of both.
ALL = {"runOnly": LEVELS, "resultTypes": ["violations"]}
CONTRAST = {"runOnly": {"type": "rule", "values": ["color-contrast"]}, "resultTypes": ["violations"]}
STRUCTURE = {"runOnly": LEVELS, "rules": {"color-contrast": {"enabled": False}}, "resultTypes": ["violations"]}
WIDE, NARROW = {"width": 1280, "height": 900}, {"width": 400, "height": 800}
#: By name: size of the window, theme, language, and the rules.
READERS = {
    "en-wide-light": (WIDE, "light", "en", ALL),
    "en-narrow-dark": (NARROW, "dark", "en", None),  # whether it fits
    "de-wide-dark": (WIDE, "dark", "de", CONTRAST),
    "he-narrow-light": (NARROW, "light", "he", STRUCTURE),
}
EACH_READER = few_of(READERS, ["en-wide-light", "en-narrow-dark"])
#: Whether a table is wider than the room that it has.
CLIPPED = "[...document.querySelectorAll('.dq-wide:has(table)')].some((one) => one.scrollWidth > one.clientWidth + 1)"


def axe_core():
    """The script of axe-core; without it the test is skipped, but fails in CI."""
    if not AXE.exists():
        missing("axe")
    return AXE.read_text()


def problems(page, axe, rules=ALL):
    """What is wrong with the page as it is now: it does not fit, or violates WCAG AA as axe-core finds."""
    wrong = _violations(page, axe, rules) if rules else []
    if page.evaluate("document.documentElement.scrollWidth - window.innerWidth") > 0:
        wrong.append("it is wider than its window")
    if page.evaluate(CLIPPED):
        wrong.append("a table does not fit and has to be scrolled")
    return wrong


def _violations(page, axe, rules):
    page.evaluate(f"() => {{ {axe} }}")
    found = page.evaluate("(rules) => axe.run(document, rules)", rules)["violations"]
    return [(one["id"], [node["html"][:300] for node in one["nodes"]][:3]) for one in found]
