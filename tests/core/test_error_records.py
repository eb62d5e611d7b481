"""The stored list of errors: appended to, cut, and read after other code wrote into the column."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from delayedq.core.bounds import ERRORS_KEPT
from delayedq.core.errors import known_errors, with_error

FAILED_AT = datetime(2013, 1, 1, 9, tzinfo=UTC)


def failed(stored, attempt):
    return with_error(
        stored, attempt=attempt, failed_at=FAILED_AT, seconds=0.12345678, worker="w", exception="E", message="why"
    )


def test_a_record_has_all_that_is_known_of_the_attempt():
    assert json.loads(failed(None, 1)) == [
        {
            "attempt": 1,
            "failed_at": "2013-01-01T09:00:00+00:00",
            "seconds": 0.123457,
            "worker": "w",
            "exception": "E",
            "message": "why",
            "traceback": "",
        }
    ]


def test_only_the_last_records_are_kept():
    stored = None
    for attempt in range(1, ERRORS_KEPT + 3):
        stored = failed(stored, attempt)
    assert [record["attempt"] for record in known_errors(stored)] == list(range(3, ERRORS_KEPT + 3))


@pytest.mark.parametrize(
    "stored",
    ["", "{", "7", '["x"]', '[{"attempt": "1"}]', '{"attempt": 1}', "[{}]", "null", "[" * 100_000 + "]" * 100_000],
    ids=range(9),
)
def test_other_contents_of_the_column_count_as_no_records(stored):
    assert known_errors(stored) == []
    assert [record["attempt"] for record in known_errors(failed(stored, 5))] == [5]
