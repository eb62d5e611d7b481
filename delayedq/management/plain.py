"""What `tables` needs of rich, in plain text: for those who have not installed it (the extra `cli`)."""

from __future__ import annotations

from itertools import zip_longest
from typing import TYPE_CHECKING, Any, NamedTuple, Self

if TYPE_CHECKING:
    from collections.abc import Iterable

SIMPLE_HEAD = None
GAP = "   "


class Text:
    """A text; its style is not shown."""

    def __init__(self, text: str = "", style: str = "") -> None:  # noqa: ARG002 - as rich has it
        self.plain = text

    def join(self, texts: Iterable[Text]) -> Text:
        return Text(self.plain.join(text.plain for text in texts))


class Table:
    """Columns as wide as what they hold. Cells may have several lines."""

    def __init__(self, **layout: Any) -> None:
        self._gap = " " * (3 if "box" in layout else 2)
        self._titles: list[str] = []
        self._rows: list[list[str]] = []
        self._spaced = bool(layout.get("leading"))

    @classmethod
    def grid(cls, **layout: Any) -> Self:
        """A table without titles."""
        return cls(**layout)

    @property
    def row_count(self) -> int:
        return len(self._rows)

    def add_column(self, title: str = "", **_: Any) -> None:
        self._titles.append(title)

    def add_row(self, *cells: str | Text, **_: Any) -> None:
        self._rows.append([cell.plain if isinstance(cell, Text) else cell for cell in cells])

    def add_section(self) -> None:
        """What follows is of another schedule: its name says so."""

    def lines(self) -> list[str]:
        """The titles, a line below them, and the rows."""
        cells = [[cell.split("\n") for cell in row] for row in self._rows]
        columns = zip_longest([[title] for title in self._titles], *cells, fillvalue=[""])
        widths = [max(len(line) for cell in column for line in cell) for column in columns]
        lines: list[str] = []
        if any(self._titles):
            lines += [self._line(self._titles, widths), "-" * (sum(widths) + len(self._gap) * (len(widths) - 1))]
        for number, row in enumerate(cells):
            if number and self._spaced:
                lines.append("")
            lines += [self._line(parts, widths) for parts in zip_longest(*row, fillvalue="")] or [""]
        return lines

    def _line(self, parts: Iterable[str], widths: Iterable[int]) -> str:
        return self._gap.join(part.ljust(width) for part, width in zip(parts, widths, strict=False)).rstrip()


class Measurement(NamedTuple):
    """In columns."""

    maximum: int


class Console:
    """`width`: of the terminal, in columns."""

    def __init__(self, *, file: Any, width: int, **_: Any) -> None:
        self._file = file
        self.width = width

    @property
    def options(self) -> Self:
        return self

    def update(self, **_: Any) -> Self:
        return self

    def measure(self, table: Table, **_: Any) -> Measurement:
        return Measurement(max(map(len, table.lines()), default=0))

    def print(self, shown: Table | str) -> None:
        for line in shown.lines() if isinstance(shown, Table) else [shown]:
            self._file.write(f"{line}\n")
