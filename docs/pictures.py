"""The pictures of ```mermaid blocks, as the site shows them: `python docs/pictures.py path/to/mermaid.min.js`.

Run it after changing such a block, and commit what it writes: `images/PAGE-N.svg` and, for dark mode, `-dark.svg`. It
needs Chromium and Playwright; building the site needs neither. Hosts of code draw the block itself.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

DOCS = Path(__file__).parent
BLOCK = re.compile(r"^```mermaid\n(.*?)^```$", re.DOTALL | re.MULTILINE)
THEMES = {"": "default", "-dark": "dark"}
DRAW = """async ([source, theme, id]) => {
    mermaid.initialize({ startOnLoad: false, theme, htmlLabels: false, flowchart: { htmlLabels: false } });
    return (await mermaid.render(id, source)).svg;
}"""


class Picture(NamedTuple):
    """One block of a page."""

    name: str
    source: str

    @property
    def mark(self) -> str:
        """What the first line of its files says, so that a test finds those that are out of date."""
        return f"<!-- {hashlib.sha256(self.source.encode()).hexdigest()} -->\n"

    def path(self, suffix: str) -> Path:
        """The file of a key of THEMES."""
        return DOCS / "images" / f"{self.name}{suffix}.svg"


def pictures(page: str, text: str) -> list[Picture]:
    """Those of a page, by its name without `.md`."""
    sources = enumerate(BLOCK.findall(text), start=1)
    return [Picture(f"{page.replace('/', '-')}-{number}", source) for number, source in sources]


def shown(page: str, text: str) -> str:
    """The text with a picture for light mode and one for dark mode in place of each block."""
    found = iter(pictures(page, text))
    return BLOCK.sub(lambda _: _images(page, next(found)), text)


def _images(page: str, picture: Picture) -> str:
    folder = "../" * page.count("/") + "images"
    modes = {"": "only-light", "-dark": "only-dark"}
    return "\n\n".join(
        f"```{{image}} {folder}/{picture.path(suffix).name}\n:class: {mode}\n:alt: A picture of this section\n```"
        for suffix, mode in modes.items()
    )


def every() -> Iterator[Picture]:
    """Those of all pages."""
    for page in sorted(DOCS.rglob("*.md")):
        yield from pictures(str(page.relative_to(DOCS).with_suffix("")), page.read_text())


def draw(mermaid: Path) -> None:
    """Write all files. mermaid: the script `dist/mermaid.min.js` of the npm package mermaid 11."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = chromium.new_page()
        page.set_content("<!doctype html><body></body>")
        page.add_script_tag(path=mermaid)
        for picture in every():
            for suffix, theme in THEMES.items():
                svg = page.evaluate(DRAW, [picture.source, theme, f"{picture.name}{suffix}"])
                picture.path(suffix).write_text(f"{picture.mark}{svg}\n")
        chromium.close()


if __name__ == "__main__":
    draw(Path(sys.argv[1]))
