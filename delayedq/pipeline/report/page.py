"""The report as one HTML page that needs nothing else: no network, no scripts, light or dark as the reader's system is.

Each section begins with a sentence that says what its chart shows, with the numbers; the sentences alone tell it all.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC
from typing import TYPE_CHECKING

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from delayedq.pipeline.report import charts, sentences, words
from delayedq.pipeline.report.window import moment

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime

    from delayedq.pipeline.report.capacity import Plan
    from delayedq.pipeline.report.figures import Figures, Row

#: Rows that a table shows at most; the files beside the page have all.
MOST_ROWS = 25


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


def render(figures: Figures, made_at: datetime) -> str:
    """The page. `made_at` is an aware time; the page says it in UTC."""
    environment = Environment(
        loader=PackageLoader("delayedq.pipeline.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    since, until = moment(figures.window.since), moment(figures.window.until)
    return environment.get_template("report.html").render(
        since=f"{since:%-d %B %Y %H:%M}",
        until=f"{until:%-d %B %Y %H:%M}",
        made_at=f"{made_at.astimezone(UTC):%-d %B %Y %H:%M}",
        summary=sentences.summary(figures),
        tiles=sentences.tiles(figures),
        sections=sections(figures),
    )


def sections(figures: Figures) -> list[Section]:
    """Those for which there is something to say."""
    each = [_throughput, _waits, _backlog, _kinds, _distribution, _week, _capacity, _retries, _failures, _leases]
    made = [section(figures) for section in [*each, _drift, _open]]
    return [section for section in made if section is not None]


def _throughput(figures: Figures) -> Section | None:
    if not figures.rows("flow"):
        return None
    return _drawn("What arrived, and what ended", sentences.throughput(figures), charts.throughput, figures)


def _waits(figures: Figures) -> Section | None:
    if figures.overall("wait") is None:
        return None
    return _drawn("How long messages waited to begin", sentences.waits(figures), charts.waits, figures)


def _backlog(figures: Figures) -> Section | None:
    if not figures.rows("backlog"):
        return None
    table = _table(
        figures.rows("littles_law"),
        _text("queue", "queue"),
        _count("waiting, on average", "waiting"),
        _count("arrivals per second", "rate"),
        _duration("mean wait", "wait"),
        _count("rate × wait", "expected"),
        _Column("apart by", lambda row: words.share(row["gap"], 1)),
    )
    return _drawn("Backlog", sentences.backlog(figures), charts.backlog, figures, table)


def _kinds(figures: Figures) -> Section | None:
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


def _distribution(figures: Figures) -> Section | None:
    if not figures.rows("distribution"):
        return None
    return _drawn("The slow ones", sentences.distribution(figures), charts.distribution, figures)


def _week(figures: Figures) -> Section | None:
    if not charts.has_weeks(figures):
        return None
    return _drawn("Hours of the week", sentences.week(figures), charts.week, figures)


def _capacity(figures: Figures) -> Section | None:
    if not figures.plans:
        return None
    plan = figures.plans[0]
    table = _table(
        figures.plans,
        _Column("queue", lambda plan: plan.queue, is_number=False),
        _Column("mean load", lambda plan: words.count(plan.mean_load)),
        _Column("busiest load", lambda plan: words.count(plan.peak.traffic.load)),
        _Column("threads", lambda plan: f"{plan.threads:,}"),
        _Column("by chance", _by_chance),
        _Column("for the busiest period", lambda plan: f"{plan.peak_threads:,}"),
    )
    sentence = sentences.capacity(figures)
    chart = Markup(charts.capacity(figures, plan, sentence.striptags()))  # noqa: S704 - made here
    return Section("How many threads it takes", sentence, chart, table, sentences.capacity_notes(figures))


def _by_chance(plan: Plan) -> str:
    return "–" if plan.low is None else f"{plan.low:,}" if plan.low == plan.high else f"{plan.low:,}–{plan.high:,}"


def _retries(figures: Figures) -> Section | None:
    if not charts.within_attempts(figures):
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


def _failures(figures: Figures) -> Section | None:
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


def _leases(figures: Figures) -> Section | None:
    rows = sorted(figures.rows("leases"), key=lambda row: (-row["silent"], -(row["longest"] or 0)))
    lease = figures.lease.total_seconds()
    table = _table(
        rows,
        _text("task", "kind"),
        _count("attempts", "attempts"),
        _count("ended without a word", "silent"),
        _count("replaced while they ran", "superseded"),
        _Column("longest run ÷ lease", lambda row: words.count((row["longest"] or 0) / lease)),
    )
    return Section("Leases", sentences.leases(figures), table=table) if rows else None


def _drift(figures: Figures) -> Section | None:
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


def _open(figures: Figures) -> Section | None:
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
    title: str, sentence: Markup, draw: Callable[[Figures, str], str], figures: Figures, table: Table | None = None
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
