"""The sentences above each chart of a report."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from markupsafe import Markup

from delayedq.pipeline.report import charts, words
from delayedq.pipeline.report.facts import HOUR, OTHER_EXCEPTIONS, OTHERS, moment
from delayedq.pipeline.report.tables import ALL, COVERED

if TYPE_CHECKING:
    from delayedq.pipeline.report.tables import ReportFigures

_MINUTE = 60
_DAYS = ("Mondays", "Tuesdays", "Wednesdays", "Thursdays", "Fridays", "Saturdays", "Sundays")


class Tile(NamedTuple):
    value: str
    name: str
    about: str


def _say(text: str, *values: object) -> Markup:
    """Numbers stand out; everything is escaped."""
    return Markup(text.replace("{}", "<b>{}</b>")).format(*values)  # noqa: S704 - only our own texts


def summary(figures: ReportFigures) -> Markup:
    ended, wait = figures.ended(), figures.overall("wait")
    total = sum(ended.values())
    if not total:
        return _say("No message ended in this time.")
    good = ended.get("succeeded", 0)
    taken = sum(ended.get(state, 0) for state in ("cancelled", "expired", "superseded"))
    text = _say("{} ended", words.several(total, "message"))
    if taken:
        text += _say(
            ": {} were cancelled, replaced or too late, and of the others {} ended well.",
            f"{taken:,}",
            words.share(good, total - taken),
        )
    else:
        text += _say(", {} of them well.", words.share(good, total))
    if wait:
        text += _say(
            " Half began within {} of their time and 95% within {}.",
            words.duration(wait["p50"]),
            words.duration(wait["p95"]),
        )
    return text


def tiles(figures: ReportFigures) -> list[Tile]:
    ended, wait, whole = figures.ended(), figures.overall("wait"), figures.overall("turnaround")
    total = sum(ended.values())
    if not total:
        return []
    made = [Tile(f"{total:,}", "ended", f"{ended.get('failed', 0):,} failed")]
    if wait:
        made.append(Tile(words.duration(wait["p95"]), "wait, p95", f"p50 {words.duration(wait['p50'])}"))
    if whole:
        made.append(Tile(words.duration(whole["p95"]), "arrival to end, p95", f"p50 {words.duration(whole['p50'])}"))
    waiting = [row["waiting"] for row in figures.levels.values()]
    if any(waiting):
        mean = words.count(_mean(figures, "waiting_mean"))
        made.append(Tile(f"{max(waiting):,}", "waiting at most", f"{mean} on average"))
    if figures.plans:
        plan = figures.plans[0]
        about = f"{words.duration(figures.target.seconds)} for {figures.target.share:.0%}"
        made.append(Tile(f"{plan.threads:,}", "thread needed" if plan.threads == 1 else "threads needed", about))
    return made


def throughput(figures: ReportFigures) -> Markup:
    ended = figures.ended()
    arrived = {bucket: n for (bucket, event), n in figures.events.items() if event == "arrived"}
    width = words.duration(figures.window.width)
    best, most = max(arrived.items(), key=lambda pair: pair[1], default=(figures.window.since, 0))
    mean = sum(arrived.values()) / (figures.window.seconds / figures.window.width)
    text = _say(
        "{} arrived and {} ended: {} succeeded",
        words.several(sum(arrived.values()), "message"),
        f"{sum(ended.values()):,}",
        f"{ended.get('succeeded', 0):,}",
    )
    for state in ("failed", "cancelled", "expired", "superseded"):
        if ended.get(state):
            text += _say(", {} " + state, f"{ended[state]:,}")
    text += _say(".")
    if early := sum(row["early"] for row in figures.rows("retries")):
        text += _say(" {} never arrived: they were cancelled or replaced before they were due.", f"{early:,}")
    if most > mean:
        text += _say(" The busiest {} began on {} and brought {}", width, _when(figures, best), f"{most:,}")
        text += _say(", {} times the mean.", words.count(most / mean))
    return text


def waits(figures: ReportFigures) -> Markup:
    wait = figures.overall("wait") or {}
    rows = figures.rows("by_time", measure="wait")
    worst = max(rows, key=lambda row: row["p95"])
    text = _say(
        "Half began within {}, 95% within {} and 99% within {} of when they could; the longest wait was {}. ",
        *(words.duration(wait[name]) for name in ("p50", "p95", "p99", "longest")),
    )
    late = sum(row["p95"] > figures.target.seconds for row in rows)
    if len(rows) == 1:
        return text
    return text + _say(
        "p95 was worst on {}, with {}, and above the dotted target of {} in {} of {} spans of {}.",
        _when(figures, worst["bucket"]),
        words.duration(worst["p95"]),
        words.duration(figures.target.seconds),
        late,
        len(rows),
        words.duration(figures.window.width),
    )


def backlog(figures: ReportFigures) -> Markup:
    text = _say(
        "{} waited and {} ran on average. ",
        words.count(_mean(figures, "waiting_mean")),
        words.count(_mean(figures, "running_mean")),
    )
    bucket, most = max(((b, row["waiting"]) for b, row in figures.levels.items()), key=lambda pair: pair[1])
    if not most:
        return text + _say("At the end of each span of {}, nothing waited.", words.duration(figures.window.width))
    end = min(bucket + figures.window.width, figures.window.until)
    return text + _say("The most that waited at the end of a span were {}, on {}.", f"{most:,}", _when(figures, end))


def kinds(figures: ReportFigures) -> Markup:
    every = charts.kinds(figures)
    rows = [row for row in every if row["kind"] != OTHERS] or every
    work = {row["kind"]: row["mean"] * row["n"] for row in every}
    heaviest = max(rows, key=lambda row: work[row["kind"]])
    slowest = max(rows, key=lambda row: row["p95"])
    text = _say(
        "{} took {} of all run time in {}",
        heaviest["kind"],
        words.share(work[heaviest["kind"]], sum(work.values())),
        words.several(heaviest["n"], "attempt"),
    )
    if slowest is heaviest:
        text += _say(", with a p95 of {}.", words.duration(slowest["p95"]))
    else:
        text += _say("; the slowest was {}, with a p95 of {}.", slowest["kind"], words.duration(slowest["p95"]))
    if len(rows) > charts.MOST_KINDS:
        number = f"{len(rows)}" if len(rows) == len(every) else f"more than {len(rows)}"
        text += _say(" The chart shows the {} most frequent of {} tasks.", charts.MOST_KINDS, number)
    return text


def distribution(figures: ReportFigures) -> Markup:
    whole = figures.overall("turnaround") or figures.overall("wait") or figures.overall("run") or {}
    return _say(
        "One message in 100 took longer than {} from its arrival to its end, and the slowest {}. Each line shows which"
        " share took longer than the time below it.",
        words.duration(whole["p99"]),
        words.duration(whole["longest"]),
    )


def week(figures: ReportFigures) -> Markup:
    hours = charts.hours_of_week(figures)
    (day, hour), most = max(hours.items(), key=lambda pair: pair[1])
    mean = sum(hours.values()) / (7 * 24)
    return _say(
        "{} from {} are busiest, with {} messages in the hour: {} times the mean hour. All times are UTC.",
        _DAYS[day],
        f"{hour:02}:00",
        words.count(round(most)),
        words.count(most / mean),
    )


def capacity(figures: ReportFigures) -> Markup:
    plan, target = figures.plans[0], figures.target
    whose = "" if plan.queue == ALL else f" in {plan.queue}"
    text = _say(
        "{} of messages{} begin within {} with {} in {} of all {} that brought work.",
        f"{target.share:.0%}",
        whose,
        words.duration(target.seconds),
        words.several(plan.threads, "thread"),
        f"{COVERED:.0%}",
        _periods(figures),
    )
    text += _say(
        " The busiest began on {}, kept {} threads busy and needs {}.",
        _when(figures, plan.peak.begins),
        words.count(plan.peak.traffic.load),
        f"{plan.peak_threads:,}",
    )
    if len(charts.falling(figures, plan)) < charts.CURVE:
        return text
    return text + _say(" The chart shows how long its messages would wait with fewer or more.")


def capacity_notes(figures: ReportFigures) -> list[str]:
    traffic = figures.plans[0].peak.traffic
    arrivals, runs = words.count(traffic.arrival_variability), words.count(traffic.run_variability)
    method = (
        "Waits are those that Erlang’s C formula gives, with Allen and Cunneen’s correction for arrivals that are"
        f" {arrivals} times, and run times that are {runs} times as variable as pure chance in the busiest period."
        " Run times are taken not to depend on the number of threads."
    )
    return ["A thread runs one task at a time. Loads are in threads that are kept busy.", method]


def failures(figures: ReportFigures) -> Markup:
    """What failed, and what trying again made of it."""
    rows = figures.rows("failures")
    worst = max(rows, key=lambda row: (row["exception"] != OTHER_EXCEPTIONS, row["attempts"]))
    text = _say(
        "{} failed, and {} for good. The most frequent exception was {} in {}, {} times.",
        words.several(sum(row["attempts"] for row in rows), "attempt"),
        words.several(sum(row["dead"] for row in rows), "message"),
        worst["exception"],
        worst["kind"],
        f"{worst['attempts']:,}",
    )
    wasted, run = sum(row["wasted"] for row in rows), figures.overall("run")
    if run and wasted:
        lost = words.share(wasted, run["mean"] * run["n"])
        text += _say(" Failed attempts ran for {}, {} of all run time.", words.duration(wasted), lost)
    return text


def retries(figures: ReportFigures) -> Markup:
    rows, reached = figures.rows("retries"), charts.within_attempts(figures)
    again = sum(row["n"] * max(0, row["attempts"] - 1) for row in rows)
    return _say(
        "{} of {} were retries. {} of the messages that ran succeeded at the first attempt, and {} in the end.",
        words.share(again, sum(row["n"] * row["attempts"] for row in rows)),
        words.several(sum(row["n"] * row["attempts"] for row in rows), "attempt"),
        words.share(reached[0][1], 1),
        words.share(reached[-1][1], 1),
    )


def leases(figures: ReportFigures) -> Markup:
    rows = figures.rows("leases")
    attempts, silent = sum(row["attempts"] for row in rows), sum(row["silent"] for row in rows)
    run, lease = figures.overall("run"), figures.lease.total_seconds()
    text = _say(
        "{} of {} ended without a record, as when a worker is killed or loses its lease.",
        f"{silent:,}",
        words.several(attempts, "attempt"),
    )
    if run:
        text += _say(
            " p99 of all run times is {} of the lease of {}.", _times(run["p99"] / lease), words.duration(lease)
        )
    return text


def drift(figures: ReportFigures) -> Markup:
    rows = figures.rows("drift")
    late = [row for row in rows if row["longest"] is not None]
    missed, repeated = (sum(row[name] for row in rows) for name in ("cancelled", "repeated"))
    text = _say("{} ran. ", words.several(sum(row["n"] for row in rows), "tick"))
    if late:
        worst = max(late, key=lambda row: row["longest"])
        text += _say("The latest began {} after its time, in {}. ", words.duration(worst["longest"]), worst["schedule"])
    return text + _say("{} were missed and {} ran twice.", f"{missed:,}", f"{repeated:,}")


def still_open(figures: ReportFigures) -> Markup:
    rows = figures.rows("still_open")
    oldest = max((row["oldest"] for row in rows if row["oldest"] is not None), default=None)
    due = sum(row["due"] for row in rows)
    text = _say(
        "{} had not ended with this time; {} due.",
        words.several(sum(row["n"] for row in rows), "message"),
        "1 was" if due == 1 else f"{due:,} were",
    )
    if oldest is None:
        return text
    return text + _say(
        " Percentiles above count only what is over; the oldest of these has already taken {}.", words.duration(oldest)
    )


def _mean(figures: ReportFigures, level: str) -> float:
    area = sum(row[level] * row["seconds"] for row in figures.rows("backlog"))
    return float(area / figures.window.seconds)


def _when(figures: ReportFigures, seconds: float) -> str:
    """A moment of the window: a bucket may begin before it. With seconds where buckets are shorter than a minute."""
    begins = moment(max(seconds, figures.window.since))
    return f"{begins:%a %-d %b %H:%M:%S}" if figures.window.width < _MINUTE else f"{begins:%a %-d %b %H:%M}"


def _times(ratio: float) -> str:
    return words.share(ratio, 1) if ratio < 1 else f"{words.count(ratio)} times"


def _periods(figures: ReportFigures) -> str:
    return "hours" if figures.window.period == HOUR else f"spans of {words.duration(figures.window.period)}"
