"""The progress display: a live panel in a terminal, a line at intervals elsewhere."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple, Self

from rich.console import Group
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Column, Table
from rich.text import Text

from example_project.flights.replay.timeline import NEW_YORK

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from rich.console import Console, RenderableType

    from example_project.flights.models import Delivery
    from example_project.flights.replay.verdict import Lateness

LINE_EVERY = timedelta(hours=3)


class Moment(NamedTuple):
    """The state of the replay at one moment."""

    recorded: datetime
    counts: dict[str, int]
    last: Sequence[Delivery]


class Screen:
    def __init__(self, console: Console) -> None:
        self.console = console
        self.live = Live(console=console, transient=True, auto_refresh=False) if console.is_terminal else None
        self.next_line: datetime | None = None

    def __enter__(self) -> Self:
        if self.live:
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.live:
            self.live.stop()

    def show(self, moment: Moment) -> None:
        if self.live:
            self.live.update(_picture(moment), refresh=True)
        elif self.next_line is None or moment.recorded >= self.next_line:
            self.next_line = moment.recorded + LINE_EVERY
            counts = ", ".join(f"{name} {count}" for name, count in moment.counts.items())
            self.console.print(f"{_clock(moment.recorded)}  {counts}", highlight=False)


def summary(counts: dict[str, int], late: Lateness | None) -> Table:
    table = Table("reminders", Column(justify="right"))
    for name, count in counts.items():
        table.add_row(name, f"{count}")
    for name, value in late._asdict().items() if late else ():
        table.add_row(f"late, {name}", _milliseconds(value))
    return table


def _picture(moment: Moment) -> RenderableType:
    counts = Table.grid(padding=(0, 2))
    counts.add_column(style="dim")
    counts.add_column(justify="right")
    for name, count in moment.counts.items():
        counts.add_row(name, f"{count}")
    both = Table.grid(padding=(0, 6))
    both.add_row(counts, _last_deliveries(moment.last))
    bar = ProgressBar(
        total=moment.counts["scheduled"] - moment.counts["cancelled"], completed=moment.counts["delivered"]
    )
    return Panel(Group(both, Text(), bar), title=f"New York, {_clock(moment.recorded)}", title_align="left", width=72)


def _last_deliveries(deliveries: Sequence[Delivery]) -> Table:
    table = Table.grid(padding=(0, 2))
    for delivery in deliveries:
        flight = delivery.flight
        leaves = flight.expected_departure.astimezone(NEW_YORK)
        table.add_row(f"{flight}", f"leaves {leaves:%H:%M}", Text(f"late {_milliseconds(delivery.late)}", style="dim"))
    return table


def _clock(recorded: datetime) -> str:
    return f"{recorded.astimezone(NEW_YORK):%a %d %b %Y %H:%M}"


def _milliseconds(duration: timedelta) -> str:
    return f"{duration / timedelta(milliseconds=1):.1f} ms"
