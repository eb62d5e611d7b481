"""Dead letters and what they failed of, on all databases: fingerprints, groups of them, and scans by group and text."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from delayedq.core.errors import fingerprint
from delayedq.core.lifecycle import FinalOutcome
from delayedq.models import FinishedMessage
from delayedq.store import operator_store
from delayedq.store.figures import Extent, Grid
from delayedq.store.operator import FIRST, EndedQuery, LiveQuery, Revival
from delayedq.store.protocol import Finish, OnConflict
from tests.store.given import LANE, NOW, at, claim, claim_one, fail, history, message, settle, succeed

FULL, LATE = "app.Full: Seat 7 is taken", "app.Late: UA1545"


def errors(line):
    name, _, said = line.partition(": ")
    return json.dumps([{"attempt": 1, "exception": name, "message": said}])


def dead(store, key, line, *, seconds=0, **fields):
    """A dead letter that ended then; returns its id."""
    store.at(NOW).offer(message(key, **fields))
    claimed = claim_one(store)
    settle(store, fail(claimed, errors=errors(line), finished=0.0), now=at(seconds))
    return claimed.id


@pytest.fixture
def groups(store):
    return operator_store(store.alias).error_groups


def test_a_dead_letter_has_the_line_of_its_last_error_and_its_fingerprint(store):
    dead(store, "a", FULL)
    row = history(key="a")
    assert (row.error, row.fingerprint) == (FULL, fingerprint(FULL))


def test_of_a_batch_only_the_dead_letters_have_one(store):
    store.at(NOW).offer_many([message(key) for key in "abcd"])
    a, b, c, d = sorted(claim(store, 4), key=lambda claimed: claimed.key)
    cancelled = Finish(c, FinalOutcome.CANCELLED, 1.0, 0.0, None, errors(LATE))
    settle(store, succeed(a), fail(b, errors=errors(FULL)), cancelled, fail(d))
    found = dict(FinishedMessage.objects.values_list("key", "error"))
    assert found == {"a": None, "b": FULL, "c": None, "d": ""}
    assert FinishedMessage.objects.filter(fingerprint=None).count() == 2
    assert history(key="d").fingerprint == fingerprint("")


def test_errors_of_earlier_attempts_count_if_the_last_one_brings_none(store):
    store.at(NOW).offer(message("a"))
    claimed = claim_one(store)._replace(errors=errors(LATE))
    settle(store, fail(claimed))
    assert history(key="a").error == LATE


def test_an_awkward_error_is_stored(store):
    line = "app.E: \\ \" ' {} é 漢 😀 %s, NULL"
    dead(store, "a", line)
    assert history(key="a").error == line


def test_what_was_unscheduled_or_superseded_has_none(store):
    store.at(NOW).offer_many([message("a"), message("b")])
    b = next(claimed for claimed in claim(store, 2) if claimed.key == "b")
    store.at(NOW).unschedule("tests.remind", "a")
    store.at(NOW).offer(message("b", payload='{"n":1}'), OnConflict.REPLACE)
    settle(store, fail(b, errors=errors(FULL)))
    assert set(FinishedMessage.objects.values_list("outcome", "error", "fingerprint")) == {
        ("cancelled", None, None),
        ("superseded", None, None),
    }


def test_groups_have_their_ends_their_newest_and_their_size(store, groups):
    full = [dead(store, f"{n}", f"app.Full: Seat {n} is taken", seconds=n) for n in range(5)]
    late = dead(store, "late", LATE, seconds=60, kind="tests.other")

    extents = {one.fingerprint: one for one in groups.extents(100)}

    assert extents == {
        fingerprint(FULL): Extent(fingerprint(FULL), at(0), at(4)),
        fingerprint(LATE): Extent(fingerprint(LATE), at(60), at(60)),
    }
    both = [fingerprint(FULL), fingerprint(LATE)]
    newest = groups.newest([*both, 5])
    assert {key: (one.id, one.error, one.kind) for key, one in newest.items()} == {
        both[0]: (full[-1], "app.Full: Seat 4 is taken", "tests.remind"),
        both[1]: (late, LATE, "tests.other"),
    }
    assert groups.sizes(both, 3) == {both[0]: 3, both[1]: 1}
    grid = Grid(at(0), at(0) + timedelta(minutes=2), 60)
    assert groups.lately(both, grid, 100) == {both[0]: {0: 5}, both[1]: {1: 1}}
    assert groups.lately(both, grid, 2)[both[0]] == {0: 2}


def test_without_dead_letters_there_are_no_groups(store, groups):
    store.at(NOW).offer(message("a"))
    settle(store, succeed(claim_one(store)))
    assert groups.extents(100) == []
    assert groups.newest([]) == {}


def test_no_more_groups_are_found_than_asked_for(store, groups):
    for letter in "abc":
        dead(store, letter, f"app.{letter}")
    assert len(groups.extents(2)) == 2


def test_dead_letters_are_scanned_by_group_and_by_text(store):
    full = [dead(store, f"{n}", f"app.Full: Seat {n} is taken", seconds=n) for n in range(5)]
    late = dead(store, "late", LATE, seconds=60)
    scan = operator_store(store.alias).keyset_scan_history

    def ids(limit=100, **asked):
        return [position.id for position in scan(limit=limit, asked=EndedQuery(**asked)).found]

    assert ids(fingerprint=fingerprint(FULL)) == full[::-1]
    assert ids(fingerprint=fingerprint(FULL), limit=2) == full[:2:-1]
    assert ids(fingerprint=fingerprint(FULL), queue="other") == []
    assert ids(outcome="failed", error="SEAT 3") == [full[3]]
    assert ids(error="ua1545") == [late]
    assert ids(key="la") == [late]
    assert ids(key="a") == []


def test_live_messages_are_scanned_by_what_stands_in_their_payload(store):
    for key, payload in (("a", '{"args":["München"]}'), ("b", '{"args":["M\\u00fcnchen"]}'), ("c", '{"args":["%"]}')):
        store.at(NOW).offer(message(key, payload=payload))
    scan = operator_store(store.alias).at(NOW).keyset_scan
    assert len(scan([LANE], FIRST, asked=LiveQuery(argument="München")).found) == 2
    assert len(scan([LANE], FIRST, asked=LiveQuery(argument="%")).found) == 1
    assert scan([LANE], FIRST, budget=2, asked=LiveQuery(argument="Berlin")).reached is not None


def test_a_dead_letter_that_lives_again_leaves_its_group(store, groups):
    id_ = dead(store, "a", FULL)
    operator_store(store.alias).at(NOW).revive([Revival(id_, NOW)], "failed")
    assert groups.extents(10) == []
