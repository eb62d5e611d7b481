"""Writes measured tables into pages, between `<!-- benchmarks NAME ... -->` and `<!-- /benchmarks -->`.

    python -m tests.benchmarks.page DIR/benchmarks.json PAGE.md ...

NAME is a scenario, several of them, or `machine`. A section of which nothing was measured stays as it is; one of which
only a part was is refused: its rows would look as if they could be compared.
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
        page.write_text(MARKED.sub(lambda found: _section(found, written), page.read_text()))


def _section(found: re.Match[str], written: dict[str, Any]) -> str:
    names, scenarios = found["names"].split(), written["scenarios"]
    missing = [name for name in names if name not in scenarios]
    if names == ["machine"]:
        text = _machine(written["machine"])
    elif missing == names:
        return found[0]
    elif missing:
        raise SystemExit(f"Measure these, too: python -m tests.benchmarks {' '.join(missing)}")
    else:
        text = "\n".join(_rows(Figure.of(record) for name in names for record in scenarios[name])) + "\n"
    return f"{found[1]}{text}{found[3]}"


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
