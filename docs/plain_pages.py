"""An extension of Sphinx: each page also as Markdown, `llms.txt`, pictures, and links to files of the repository.

A link that leaves `docs/` (to the README or a file of the code) has no page on the site: it becomes plain text there,
if the file exists; else it is left to Sphinx, which warns.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pictures

if TYPE_CHECKING:
    from sphinx.application import Sphinx

OUTSIDE = re.compile(r"\[([^\]\n]+)\]\((\.\./[^)#\s]+)(#[^)\s]*)?\)")
PARAMETER = re.compile(r"(- )?[a-z_]+(, [a-z_]+)*: ")
WITHOUT_OTHERS = re.compile(r"```\{toctree\}\n:caption: More\nOTHERS\n```\n")
ABOUT = "Delayed messages and background tasks for Django, in the project's own database."


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("source-read", unlink)
    app.connect("source-read", list_others)
    app.connect("source-read", show_pictures)
    app.connect("autodoc-process-docstring", shape)
    app.connect("build-finished", write_plain)
    return {"parallel_read_safe": True}


def unlink(app: Sphinx, name: str, source: list[str]) -> None:  # noqa: ARG001
    """Replace links to files outside of the pages by their text."""

    def text(found: re.Match[str]) -> str:
        return found[1] if (app.srcdir / found[2]).exists() else found[0]

    source[0] = OUTSIDE.sub(text, source[0])


def list_others(app: Sphinx, name: str, source: list[str]) -> None:
    """In the index, `OTHERS` stands for the pages that it does not name; without any, their section goes."""
    if name == "index":
        named = set(source[0].splitlines()) | {"index"}
        others = "\n".join(sorted(set(app.env.found_docs) - named))
        source[0] = source[0].replace("OTHERS", others) if others else WITHOUT_OTHERS.sub("", source[0])


def show_pictures(app: Sphinx, name: str, source: list[str]) -> None:  # noqa: ARG001
    """In place of the text of a picture, its files: the site has no script that could draw it."""
    source[0] = pictures.shown(name, source[0])


def shape(app: Sphinx, what: str, name: str, of: object, options: object, lines: list[str]) -> None:  # noqa: ARG001
    """Docstrings are plain text: examples become code, and each parameter (`name: ...`) a paragraph of its own."""
    shaped: list[str] = []
    for line in lines:
        before = shaped[-1] if shaped else ""
        if line.startswith(" ") and before and not before.startswith(" "):
            shaped[-1] = f"{before} {line.strip()}"
        elif line.startswith(" ") and not before and not _in_code(shaped):
            shaped += ["::", "", line]
        elif PARAMETER.match(line) and before:
            shaped += ["", line]
        else:
            shaped.append(line)
    lines[:] = shaped


def _in_code(shaped: list[str]) -> bool:
    return bool(shaped) and next((one for one in reversed(shaped) if one), "").startswith(" ")


def write_plain(app: Sphinx, exception: Exception | None) -> None:
    """Write the Markdown of each page beside it, and `llms.txt`, which lists them."""
    if exception is not None or app.builder.format != "html":
        return
    lines = [f"# {app.config.project}", "", f"> {ABOUT}", ""]
    for name in sorted(app.env.found_docs):
        page = (app.srcdir / f"{name}.md").read_text()
        target = app.outdir / f"{name}.md"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(page)
        lines.append(f"- [{app.env.titles[name].astext()}]({name}.md)")
    (app.outdir / "llms.txt").write_text("\n".join(lines) + "\n")
