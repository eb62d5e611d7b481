"""The judge of a torture run: it accepts what is right, and finds each thing that is not."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from delayedq.torture.audit import Event
from delayedq.torture.judge import Ended, History, Rules, judge

DUE = datetime(2026, 1, 1, tzinfo=UTC)
RULES = Rules({"plain": 9, "doomed": 3, "exact": 9, "poison": 3}, {"limited": 1}, {"lined_up": 1})


def audit(*lines):
    """Events a nanosecond apart; each is (process, what, about...)."""
    return [Event(at, pid, what, tuple(about)) for at, (pid, what, *about) in enumerate(lines, 1)]


def began(id_, attempt=1, kind="plain", uid=None, *, pid=1, channel=None, thread=1):
    return pid, "began", id_, 100 * id_ + attempt, attempt, kind, uid or f"{kind}/{id_}", channel, thread


def ended(id_, attempt=1, how="returned", *, pid=1):
    return pid, "ended", id_, 100 * id_ + attempt, attempt, how


def stored(id_, kind="plain"):
    return 9, "stored", [f"{kind}/{id_}", id_]


def asked(id_, kind="plain"):
    return 9, "asked", f"{kind}/{id_}"


def row(id_, attempt=1, kind="plain", **changed):
    result = [f"{kind}/{id_}", attempt]
    return Ended(id_, kind, "succeeded", attempt, DUE, DUE, result)._replace(**changed)


def found(lines, rows=(), left=()):
    return [one.invariant for one in judge(History(audit(*lines), rows, left), RULES)]


def test_what_is_right_is_accepted():
    lines = [asked(1), stored(1), began(1), ended(1, how="raised"), began(1, 2, pid=2), ended(1, 2, pid=2)]
    assert found(lines, [row(1, 2)]) == []


@pytest.mark.parametrize("stop", ["killed", "frozen"])
def test_who_is_killed_or_frozen_holds_nothing_any_more(stop):
    lines = [asked(1), began(1), (1, stop), began(1, 2, pid=2), ended(1, 2, pid=2), ended(1)]
    assert found(lines, [row(1, 2)]) == []


def test_what_a_thread_begins_first_after_a_freeze_holds_nothing():
    """It may have looked at its lease before; what it begins then it has looked at since."""
    stale = [(1, "frozen"), began(2, 1, "keyed", "k#2", pid=2), ended(2, pid=2), (1, "thawed")]
    assert found([*stale, began(1, 1, "keyed", "k#1"), ended(1)]) == []
    other = [asked(3), began(3), ended(3)]
    assert found([*stale, *other, began(1, 1, "keyed", "k#1"), ended(1)]) == ["keys keep their order"]
    assert found([*stale, *other, began(1, 1, "keyed", "k#1", thread=2), ended(1)]) == []
    assert found([*stale[1:3], began(1, 1, "keyed", "k#1"), ended(1)]) == ["keys keep their order"]


def test_who_dies_unseen_held_until_its_last_line():
    after = [began(1, 2, pid=2), ended(1, 2, pid=2)]
    assert found([asked(1), began(1), *after], [row(1, 2)]) == []
    assert found([asked(1), began(1), after[0], (1, "step", 7, "u", 0), after[1]], [row(1, 2)]) == ["no overlap"]


WRONG = {
    "nothing is lost": ([asked(1), stored(1)], [], []),
    "everything ends": ([asked(1), stored(1)], [], [1]),
    "no overlap": ([asked(1), began(1), began(1, 2, pid=2), ended(1), ended(1, 2, pid=2)], [row(1, 2)], []),
    "no more attempts than allowed": (
        [line for n in range(1, 5) for line in (began(1, n, "doomed"), ended(1, n, "raised"))],
        [row(1, 4, "doomed", outcome="failed", result=None)],
        [],
    ),
    "each attempt has a number of its own": (
        [asked(1), began(1), ended(1), (2, *began(1)[1:]), (2, *ended(1)[1:])],
        [row(1)],
        [],
    ),
    "not before it is due": ([asked(1), began(1), ended(1)], [row(1, started_at=DUE - timedelta(seconds=1))], []),
    "what did not start is not charged": ([asked(1), began(1), ended(1)], [row(1, attempts=2)], []),
    "keys keep their order": (
        [began(1, kind="keyed", uid="k#2"), ended(1), began(2, kind="keyed", uid="k#1"), ended(2)],
        [],
        [],
    ),
    "no replacement is lost": ([(9, "offered", {"k": 2}), began(1, kind="keyed", uid="k#1"), ended(1)], [], []),
    "a tick is placed once": ([(1, "tick", id_, DUE.isoformat()) for id_ in (1, 2)], [], []),
    "no tick is missed": ([(1, "tick", n, (DUE + timedelta(seconds=n)).isoformat()) for n in (1, 3)], [], []),
    "SIGTERM ends it": ([(1, "stuck", 7)], [], []),
    "a step is done once": ([(1, "step", 1, "u", number) for number in (0, 1, 0)], [], []),
    "exactly once": ([began(1, kind="exact"), ended(1)], [row(1, kind="exact")], []),
}


@pytest.mark.parametrize("invariant", WRONG)
def test_what_does_not_hold_is_found(invariant):
    assert found(*WRONG[invariant]) == [invariant]


@pytest.mark.parametrize(("kind", "channels"), [("limited", (None, None)), ("lined_up", ("a", "a"))])
def test_more_than_a_limit_allows_is_found(kind, channels):
    first, second = channels
    lines = [began(1, kind=kind, channel=first), began(2, kind=kind, channel=second, pid=2), ended(1), ended(2, pid=2)]
    assert found(lines) == ["limits hold"]


def test_a_clock_that_was_set_back_explains_a_start_that_seems_too_soon():
    row_ = row(1, started_at=DUE - timedelta(seconds=60))
    lines = [asked(1), began(1), ended(1)]
    assert found([*lines, (9, "set back", 60)], [row_]) == []
    assert found([*lines, (9, "set back", 59)], [row_]) == ["not before it is due"]


@pytest.mark.parametrize(("kind", "outcome"), [("poison", "succeeded"), ("plain", "failed")])
def test_poison_that_does_not_end_alone_is_found(kind, outcome):
    ended_ = row(1, 1, kind, outcome=outcome, result=None)
    assert found([asked(1, kind), began(1, kind=kind), ended(1, how="raised")], [ended_]) == ["poison ends alone"]


def test_channels_have_their_limits_each():
    lines = [began(1, kind="lined_up", channel="a"), began(2, kind="lined_up", channel="b", pid=2), ended(1)]
    assert found(lines) == []


def test_a_claim_that_nobody_heard_of_may_be_charged():
    assert found([(9, "unanswered"), asked(1), began(1), ended(1)], [row(1, attempts=2)]) == []


def test_what_was_rolled_back_or_never_made_is_found():
    lines = [(9, "undone", "plain/1"), began(1), ended(1), began(2), ended(2)]
    assert found(lines) == ["nothing comes from nothing"] * 2


def test_a_stale_end_is_found():
    lines = [asked(1), began(1), ended(1, how="raised"), began(1, 2), ended(1, 2)]
    assert found(lines, [row(1, 1)]) == ["a stale end changes nothing"]
    assert found([asked(1), began(1), ended(1), began(1, 2), ended(1, 2)], [row(1, 1)]) == [
        "a stale end changes nothing"
    ]


def test_an_effect_without_its_end_is_found():
    lines = [began(1, kind="exact"), ended(1, how="raised"), began(2, kind="effect", uid="effect/exact/1"), ended(2)]
    assert found(lines, [row(1, kind="exact", outcome="cancelled", result=None)]) == ["exactly once"]


@pytest.mark.parametrize("order", [(0, 2, 1), (2, 0, 1), (0, 1)])
def test_a_flow_that_goes_on_too_soon_or_not_at_all_is_found(order):
    member = [began(1, kind="member", uid="m"), ended(1)]
    after = [(1, "collected", "c", ["m"]), began(2, kind="collect", uid="c"), ended(2)]
    flow = [(9, "flowing", "c", ["m"])]
    parts = [flow, member, after]
    lines = [line for part in order for line in parts[part]]
    assert found(lines) == ["a flow goes on once"]
    assert found([*flow, *member, *after]) == []


def test_the_lines_of_an_interleaving_are_shown():
    [violation] = judge(History(audit(*WRONG["no overlap"][0]), [row(1, 2)]), RULES)
    assert [(one.pid, one.what) for one in violation.lines] == [(1, "began"), (2, "began"), (1, "ended"), (2, "ended")]
