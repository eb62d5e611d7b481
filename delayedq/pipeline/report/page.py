"""The report as one HTML page that needs nothing else: no network, no scripts, light or dark as the reader's system is.
Every figure in it is written beside it, as Parquet and CSV.

Each section begins with a sentence that says what its chart shows, with the numbers; the sentences alone tell it all.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from datetime import UTC
from typing import TYPE_CHECKING

import pyarrow as pa
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from pyarrow import csv, parquet

from delayedq.pipeline.report import charts, sentences, words
from delayedq.pipeline.report.facts import moment

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime
    from pathlib import Path

    from delayedq.pipeline.report.tables import Plan, ReportFigures, Row

PAGE = "report.html"
TABLES = "tables"

#: Rows that a table shows at most; the files beside the page have all.
MOST_ROWS = 25
#: A run of more than this share of the lease is worth a look.
_NEAR = 0.5


@dataclass(frozen=True, slots=True)
class Table:
    """`head`: pairs of a title and a class, "number" or "". `more`: how many rows are left out."""

    head: Sequence[tuple[str, str]]
    rows: Sequence[Sequence[str]]
    more: int = 0


@dataclass(frozen=True, slots=True)
class Section:
    title: str
    sentence: Markup
    chart: Markup | None = None
    table: Table | None = None
    notes: list[str] = field(default_factory=list)


def render(figures: ReportFigures, made_at: datetime) -> str:
    """The page. `made_at` is an aware time; the page says it in UTC."""
    environment = Environment(
        loader=PackageLoader("delayedq.pipeline.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    since, until = words.times(moment(figures.window.since), moment(figures.window.until))
    return environment.get_template("report.html").render(
        since=since,
        until=until,
        made_at=f"{made_at.astimezone(UTC):%-d %B %Y %H:%M}",
        summary=sentences.summary(figures),
        tiles=sentences.tiles(figures),
        sections=sections(figures),
    )


def write(figures: ReportFigures, directory: Path, made_at: datetime) -> Path:
    """Write `report.html` and `tables/*.parquet, *.csv` into a directory of this machine; returns the page's path.

    What an earlier report left there under these names is replaced.
    """
    tables = directory / TABLES
    tables.mkdir(parents=True, exist_ok=True)
    for name, table in {**figures.tables, "capacity": capacity(figures.plans)}.items():
        parquet.write_table(table, tables / f"{name}.parquet", compression="zstd")
        csv.write_csv(table, tables / f"{name}.csv")
    page = directory / PAGE
    page.write_text(render(figures, made_at), encoding="utf-8")
    return page


def sections(figures: ReportFigures) -> list[Section]:
    """Those for which there is something to say."""
    each = [_throughput, _waits, _backlog, _kinds, _distribution, _week, _capacity, _failures, _retries, _leases]
    made = [section(figures) for section in [*each, _drift, _open]]
    return [section for section in made if section is not None]


def _throughput(figures: ReportFigures) -> Section | None:
    if not figures.rows("flow"):
        return None
    return _drawn("What arrived, and what ended", sentences.throughput(figures), charts.throughput, figures)


def _waits(figures: ReportFigures) -> Section | None:
    if figures.overall("wait") is None:
        return None
    return _drawn("How long messages waited to begin", sentences.waits(figures), charts.waits, figures)


def _backlog(figures: ReportFigures) -> Section | None:
    """Only if there was one: of a queue with less than one message in it at any time there is no picture."""
    if not any(row["waiting_mean"] + row["running_mean"] >= 1 for row in figures.levels.values()):
        return None
    return _drawn("Backlog", sentences.backlog(figures), charts.backlog, figures)


def _kinds(figures: ReportFigures) -> Section | None:
    if not charts.kinds(figures):
        return None
    waits = {row["kind"]: row for row in figures.rows("by_kind", measure="wait")}
    table = _table(
        charts.kinds(figures),
        _text("task", "kind"),
        _count("attempts", "n"),
        _Column("wait p50", lambda row: words.duration(waits.get(row["kind"], {}).get("p50"))),
        _Column("p95", lambda row: words.duration(waits.get(row["kind"], {}).get("p95"))),
        _duration("run p50", "p50"),
        _duration("p95", "p95"),
        _duration("longest", "longest"),
        _Column("total", lambda row: words.duration(row["mean"] * row["n"])),
    )
    return _drawn("Task by task", sentences.kinds(figures), charts.by_kind, figures, table)


def _distribution(figures: ReportFigures) -> Section | None:
    if not charts.has_tail(figures):
        return None
    return _drawn("The slow ones", sentences.distribution(figures), charts.distribution, figures)


def _week(figures: ReportFigures) -> Section | None:
    if not charts.has_weeks(figures):
        return None
    return _drawn("Hours of the week", sentences.week(figures), charts.week, figures)


def _capacity(figures: ReportFigures) -> Section | None:
    if not figures.plans:
        return None
    plan = figures.plans[0]
    trivial = all(plan.peak_threads == 1 for plan in figures.plans)  # the sentence says it all
    table = (
        None
        if trivial
        else _table(
            figures.plans,
            _Column("queue", lambda plan: plan.queue, is_number=False),
            _Column("mean load", lambda plan: words.count(plan.mean_load)),
            _Column("busiest load", lambda plan: words.count(plan.peak.traffic.load)),
            _Column("threads", lambda plan: f"{plan.threads:,}"),
            *([_Column("by chance", _by_chance)] if any(plan.low is not None for plan in figures.plans) else []),
            _Column("for the busiest period", lambda plan: f"{plan.peak_threads:,}"),
        )
    )
    sentence = sentences.capacity(figures)
    section = Section("How many threads it takes", sentence, table=table, notes=sentences.capacity_notes(figures))
    if len(charts.falling(figures, plan)) < charts.CURVE:
        return section
    drawn = charts.capacity(figures, plan, sentence.striptags())
    return replace(section, chart=Markup(drawn))  # noqa: S704 - made here


def _by_chance(plan: Plan) -> str:
    return "–" if plan.low is None else f"{plan.low:,}" if plan.low == plan.high else f"{plan.low:,}–{plan.high:,}"


def _failures(figures: ReportFigures) -> Section | None:
    failures = sorted(figures.rows("failures"), key=lambda row: (-row["dead"], -row["wasted"]))
    table = _table(
        failures,
        _text("task", "kind"),
        _text("exception", "exception"),
        _count("attempts", "attempts"),
        _count("messages", "messages"),
        _count("failed for good", "dead"),
        _duration("time lost", "wasted"),
    )
    return Section("Failures", sentences.failures(figures), table=table) if failures else None


def _retries(figures: ReportFigures) -> Section | None:
    """Only if a second attempt made a difference: a single bar of 100% says nothing."""
    if len(charts.within_attempts(figures)) < 2:  # noqa: PLR2004
        return None
    table = _table(
        sorted(figures.rows("recoveries"), key=lambda row: -row["n"]),
        _text("task", "kind"),
        _count("recovered", "n"),
        _duration("after, p50", "p50"),
        _duration("p95", "p95"),
        _duration("longest", "longest"),
    )
    return _drawn("Retries", sentences.retries(figures), charts.retries, figures, table)


def _leases(figures: ReportFigures) -> Section | None:
    """Only of tasks whose leases were lost, whose messages were replaced, or that run for nearly as long as a lease."""
    lease = figures.lease.total_seconds()
    rows = [
        row
        for row in figures.rows("leases")
        if row["silent"] or row["superseded"] or (row["longest"] or 0) > _NEAR * lease
    ]
    table = _table(
        sorted(rows, key=lambda row: (-row["silent"], -(row["longest"] or 0))),
        _text("task", "kind"),
        _count("attempts", "attempts"),
        _count("ended without a record", "silent"),
        _count("replaced while they ran", "superseded"),
        _Column("longest run ÷ lease", lambda row: words.count((row["longest"] or 0) / lease)),
    )
    return Section("Leases", sentences.leases(figures), table=table) if rows else None


def _drift(figures: ReportFigures) -> Section | None:
    rows = sorted(figures.rows("drift"), key=lambda row: row["schedule"])
    table = _table(
        rows,
        _text("schedule", "schedule"),
        _count("ticks", "n"),
        _duration("late by, p50", "p50"),
        _duration("p95", "p95"),
        _duration("at most", "longest"),
        _count("missed", "cancelled"),
        _count("repeated", "repeated"),
    )
    return Section("Cron", sentences.drift(figures), table=table) if rows else None


def _open(figures: ReportFigures) -> Section | None:
    rows = sorted(figures.rows("still_open"), key=lambda row: -(row["oldest"] or 0))
    table = _table(
        rows,
        _text("task", "kind"),
        _text("state", "state"),
        _count("messages", "n"),
        _count("of them due", "due"),
        _duration("since at most", "oldest"),
    )
    return Section("Not over yet", sentences.still_open(figures), table=table) if rows else None


def _drawn(
    title: str,
    sentence: Markup,
    draw: Callable[[ReportFigures, str], str],
    figures: ReportFigures,
    table: Table | None = None,
) -> Section:
    return Section(title, sentence, Markup(draw(figures, sentence.striptags())), table)  # noqa: S704 - made here


@dataclass(frozen=True, slots=True)
class _Column[T]:
    title: str
    cell: Callable[[T], str]
    is_number: bool = True


def _text(title: str, name: str) -> _Column[Row]:
    return _Column(title, lambda row: row[name], is_number=False)


def _count(title: str, name: str) -> _Column[Row]:
    return _Column(title, lambda row: words.count(row[name]))


def _duration(title: str, name: str) -> _Column[Row]:
    return _Column(title, lambda row: words.duration(row[name]))


def _table[T](rows: Sequence[T], *columns: _Column[T]) -> Table | None:
    if not rows:
        return None
    cells = [[column.cell(row) for column in columns] for row in rows[:MOST_ROWS]]
    head = [(column.title, "number" if column.is_number else "") for column in columns]
    return Table(head, cells, max(0, len(rows) - MOST_ROWS))


def capacity(plans: list[Plan]) -> pa.Table:
    """queue, mean_load, peak_load (erlangs), peak_begins, threads, peak_threads, low, high."""
    return pa.Table.from_pylist([_row(plan) for plan in plans], _CAPACITY)


def _row(plan: Plan) -> dict[str, object]:
    row = asdict(plan)
    del row["peak"]
    return row | {"peak_load": plan.peak.traffic.load, "peak_begins": plan.peak.begins}


_CAPACITY = pa.schema(
    [
        ("queue", pa.string()),
        ("mean_load", pa.float64()),
        ("peak_load", pa.float64()),
        ("peak_begins", pa.float64()),
        ("threads", pa.int64()),
        ("peak_threads", pa.int64()),
        ("low", pa.int64()),
        ("high", pa.int64()),
    ]
)
