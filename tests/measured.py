"""How large the house is: `python -m tests.measured` counts the files, lines, imports and functions of the package.

Code is what is left of a file without docstrings, comments and blank lines; migrations are left out. The numbers say
where to look, and nothing is refused for them (`tests/test_architecture.py` has the rules).
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections import Counter
from pathlib import Path
from statistics import median
from typing import NamedTuple

PACKAGE = Path(__file__).parent.parent / "delayedq"
DEFINED = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module
FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef


class Measured(NamedTuple):
    """One file: how many of its lines are what, the modules of the package it imports, the lengths of its functions."""

    lines: int
    code: int
    said: int
    imports: int
    own: int
    functions: list[int]


def measured(path: Path) -> Measured:
    text = path.read_text()
    tree = ast.parse(text)
    said = _comments(text) | _docstrings(tree)
    written = {number for number, line in enumerate(text.splitlines(), 1) if line.strip()}
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    own = {
        node.module for node in imports if isinstance(node, ast.ImportFrom) and (node.module or "")[:8] == "delayedq"
    }
    lengths = [len(_lines(node) & written - said) for node in ast.walk(tree) if isinstance(node, FUNCTION)]
    return Measured(
        len(text.splitlines()),
        len(written - said),
        len(said),
        sum(len(_lines(one)) for one in imports),
        len(own),
        lengths,
    )


def _lines(node: ast.stmt | ast.expr) -> set[int]:
    return set(range(node.lineno, (node.end_lineno or node.lineno) + 1))


def _docstrings(tree: ast.Module) -> set[int]:
    found = [node.body[0] for node in ast.walk(tree) if isinstance(node, DEFINED) and ast.get_docstring(node)]
    return {line for one in found for line in _lines(one)}


def _comments(text: str) -> set[int]:
    """The lines that hold nothing but a comment."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return {one.start[0] for one in tokens if one.type == tokenize.COMMENT and not one.line[: one.start[1]].strip()}


def main() -> None:
    paths = [
        path for path in sorted(PACKAGE.rglob("*.py")) if path.parent.name != "migrations" and path.read_text().strip()
    ]
    each = {path: measured(path) for path in paths}
    total = [sum(one[part] for one in each.values()) for part in range(5)]
    lines, code, said, imports, own = total
    lengths = [length for one in each.values() for length in one.functions]
    say = sys.stdout.write
    say(f"{len(each)} files, {lines:,} lines, {code:,} of code: {code / len(each):.0f} a file\n")
    say(f"docstrings and comments: {said / (said + code):.0%} of both\n")
    say(f"imports: {imports / len(each):.1f} lines and {own / len(each):.1f} modules of the package a file\n")
    say(f"{len(lengths):,} functions: median {median(lengths):.0f} lines of code, longest {max(lengths)}\n")
    folders = Counter[str]()
    for path, one in each.items():
        folders[path.relative_to(PACKAGE).parts[0] if path.parent != PACKAGE else "."] += one.code
    say("".join(f"{code:>7,} {folder}\n" for folder, code in folders.most_common()))


if __name__ == "__main__":
    main()
