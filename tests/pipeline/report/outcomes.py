"""Ten years of history with everything that a message can come to, drawn from a seed."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pyarrow as pa

from delayedq.core.metadata import FLOW, PARENT, ROOT, STEP, with_own
from delayedq.pipeline.lake.columns import ARROW
from delayedq.pipeline.spark.schema import LAKE
from delayedq.sql.states import FINAL_STATES

FIRST = datetime(2009, 1, 1, tzinfo=UTC)
YEARS = timedelta(days=3_652)
#: In New York DST began at 07:00 UTC on March 10, and in Berlin at 01:00 UTC on March 31.
NEW_YORK, BERLIN = ZoneInfo("America/New_York"), ZoneInfo("Europe/Berlin")
DST = {NEW_YORK: datetime(2013, 3, 10, 7, tzinfo=UTC), BERLIN: datetime(2013, 3, 31, 1, tzinfo=UTC)}
#: Five minutes in which threads have much to do.
RUSH = datetime(2014, 6, 2, 9, tzinfo=UTC)
_KINDS = {"app.send": "mail", "app.bill": "bills", "app.approve": "desk", "app.join": "default"}
#: More than a report names.
_RARE = {f"app.rare_{number}": "mail" for number in range(80)}
_EXCEPTIONS = ("app.Boom", "builtins.TimeoutError", "builtins.ValueError")


def history(number, seed=7):
    """An Arrow table of the lake's columns: a part of it spread over the years, others around DST and in the rush."""
    rng = random.Random(seed)
    rows = [_row(rng, id_, _moment(rng), rng.choice((NEW_YORK, BERLIN))) for id_ in range(1, number + 1)]
    return pa.Table.from_pylist([dict.fromkeys(LAKE.names) | row for row in rows], ARROW)


def _moment(rng):
    drawn = rng.random()
    if drawn < 0.4:
        return FIRST + timedelta(seconds=rng.uniform(0, YEARS.total_seconds()))
    if drawn < 0.6:
        return RUSH + timedelta(seconds=rng.triangular(0, 300, 100))
    near = rng.choice(list(DST.values()))
    return near + timedelta(seconds=rng.gauss(0, 36 * 3600))


def _row(rng, id_, due, zone):
    kinds = _KINDS if rng.random() < 0.7 else _RARE
    kind = rng.choice(list(kinds))
    row = {
        "id": id_,
        "kind": kind,
        "queue": kinds[kind] if rng.random() < 0.9 else "mail",
        "priority": 0,
        "max_attempts": 8,
        "payload": "{}",
        "created_at": due - timedelta(seconds=rng.choice((-0.4, 0, 60, 86_400, 5e6)) * rng.random()),
        "scheduled_at_initially": due,
        "scheduled_at": due,
        "metadata": _metadata(rng, id_, due, zone),
        "schema_version": 1,
    }
    row |= rng.choices((_tried, _moved, _never_began, _live), (80, 7, 9, 4))[0](rng, due, zone)
    return row | {"day": (row["finished_at"] or due).date()}


def _metadata(rng, id_, due, zone):
    """Of a tick of cron whose time is told in its zone (several have one time), of a step of a flow, or of nothing."""
    drawn = rng.random()
    if drawn < 0.2:
        nominal = due.replace(minute=0, second=0, microsecond=0).astimezone(zone)
        return json.dumps({"cron": {"schedule": f"hourly {zone.key}", "nominal_at": nominal.isoformat()}})
    if drawn > 0.5:
        return None
    of_task = json.dumps({"note": 'not "cron"'}) if drawn < 0.3 else None
    return with_own(of_task, {PARENT: id_ // 3, ROOT: 1, FLOW: id_ // 3 + 1, STEP: id_ % 3})


def _tried(rng, due, zone):
    """Attempts that fail one after another, of which the first may be without a record; then how it ended."""
    attempts, at, failures = min(int(rng.expovariate(0.8)) + 1, 8), due, []
    state = rng.choices(FINAL_STATES, (80, 8, 4, 4, 4))[0]
    for attempt in range(1, attempts + 1):
        begins = at + timedelta(seconds=rng.choice((0, rng.uniform(-1.5, 0), rng.lognormvariate(-2, 2))))
        ends = begins + timedelta(seconds=rng.lognormvariate(-1, 2))
        fails = attempt < attempts or state == "failed"
        if fails and rng.random() < 0.95:
            failures.append(_failure(rng, attempt, begins, ends, zone))
        if attempt < attempts:
            at = ends + timedelta(seconds=rng.uniform(0, 3_600))
    return {
        "state": state,
        "attempts": attempts,
        "scheduled_at": at,
        "started_at": begins,
        "finished_at": ends,
        "errors": json.dumps(failures) if failures else None,
    }


def _failure(rng, attempt, begins, ends, zone):
    return {
        "attempt": attempt,
        "failed_at": ends.astimezone(zone).isoformat(),
        "seconds": round((ends - begins).total_seconds(), 6) if rng.random() < 0.95 else None,
        "exception": rng.choice(_EXCEPTIONS),
    }


def _moved(rng, due, zone):
    """An item that somebody decided: it waits for a later visit of a worker when it ends."""
    started = due + timedelta(seconds=rng.uniform(0, 60))
    decided = started + timedelta(seconds=rng.lognormvariate(6, 2))
    return {
        "state": "succeeded",
        "attempts": 1,
        "scheduled_at": decided + timedelta(hours=1),
        "started_at": started,
        "finished_at": decided,
    }


def _never_began(rng, due, zone):
    """Cancelled, expired or replaced before an attempt, and perhaps before its time; created before that."""
    ended = due + timedelta(seconds=rng.uniform(-3_600, 3_600))
    state = rng.choice(("cancelled", "expired", "superseded"))
    return {"state": state, "attempts": 0, "finished_at": ended, "created_at": min(due, ended) - timedelta(hours=2)}


def _live(rng, due, zone):
    """Not started yet, or running, or waiting for a retry, perhaps without a record; no live row says when it began."""
    state, failed = rng.choice(("waiting", "leased")), rng.choice((0, 0, 1, 3))
    ends = [due + timedelta(minutes=5 * attempt) for attempt in range(1, failed + 1)]
    records = [
        _failure(rng, attempt, end - timedelta(seconds=rng.uniform(0, 9)), end, zone)
        for attempt, end in enumerate(ends, start=1)
        if rng.random() < 0.8
    ]
    return {
        "state": state,
        "attempts": failed + (state == "leased"),
        "scheduled_at": ends[-1] if ends else due,
        "started_at": None,
        "finished_at": None,
        "errors": json.dumps(records) if records else None,
    }
