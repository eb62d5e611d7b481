"""Writes measured tables into pages, between `<!-- benchmarks NAME ... -->` and `<!-- /benchmarks -->`.

    python -m tests.benchmarks.page DIR/benchmarks.json PAGE.md ...

NAME is a scenario, several of them, or `machine`. All must have been measured: rows of another run would stand beside
these as if they could be compared.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.benchmarks.figures import Figure, text_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

MARKED = re.compile(r"(<!-- benchmarks (?P<names>[^>]+?) -->\n).*?(<!-- /benchmarks -->)", re.DOTALL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("figures", type=Path)
    parser.add_argument("pages", type=Path, nargs="+")
    options = parser.parse_args()
    written = json.loads(options.figures.read_text())
    for page in options.pages:
        page.write_text(
            MARKED.sub(lambda found: f"{found[1]}{_section(found['names'], written)}{found[3]}", page.read_text())
        )


def _section(names: str, written: dict[str, Any]) -> str:
    if names == "machine":
        return _machine(written["machine"])
    if missing := [name for name in names.split() if name not in written["scenarios"]]:
        raise SystemExit(
            f"Not measured: {', '.join(missing)}. Run `python -m tests.benchmarks {' '.join(missing)}` first."
        )
    chosen = [Figure.of(record) for name in names.split() for record in written["scenarios"][name]]
    return "\n".join(_rows(chosen)) + "\n"


def _rows(figures: Iterable[Figure]) -> Iterator[str]:
    yield "| scenario | who | median | lowest | highest | unit | set-up |"
    yield "| --- | --- | ---: | ---: | ---: | --- | --- |"
    said: set[tuple[str, str]] = set()  # a contender is set up alike in all scenarios: its first row says how
    for figure in figures:
        numbers = map(text_of, (figure.median, min(figure.rounds), max(figure.rounds)))
        note = "" if (figure.name, figure.note) in said else figure.note
        said.add((figure.name, figure.note))
        yield f"| {figure.scenario} | {figure.name} | {' | '.join(numbers)} | {figure.unit} | {note} |"


def _machine(machine: dict[str, Any]) -> str:
    packages = ", ".join(f"{name} {version}" for name, version in machine["packages"].items())
    return f"{machine['cores']} cores, {machine['system']}, Python {machine['python']}; {packages}.\n"


if __name__ == "__main__":
    main()
