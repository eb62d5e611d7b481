"""Numbers as people say them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from math import inf
from types import SimpleNamespace

import pytest

from delayedq.pipeline.report import sentences, words
from delayedq.pipeline.report.facts import OTHERS


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "–"),  # noqa: RUF001
        (0, "0 s"),
        (0.00045, "450 µs"),
        (0.0123, "12 ms"),
        (0.32, "320 ms"),
        (1, "1 s"),
        (4.21, "4.2 s"),
        (9.96, "10 s"),
        (59, "59 s"),
        (60, "1 min"),
        (3_600, "1 h"),
        (720, "12 min"),
        (7_200, "2 h"),
        (5.25 * 3_600, "5.2 h"),
        (3 * 86_400, "3 days"),
        (1_500 * 86_400, "1,500 days"),
        (-0.5, "−500 ms"),  # noqa: RUF001
        (inf, "for ever"),
    ],
)
def test_durations(seconds, text):
    assert words.duration(seconds) == text


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0"), (3, "3"), (0.126, "0.13"), (12.6, "13"), (1_234_567.8, "1,234,568"), (2.8e-06, "under 0.001")],
)
def test_counts(number, text):
    assert words.count(number) == text


@pytest.mark.parametrize(
    ("part", "whole", "text"),
    [
        (1, 1, "100%"),
        (0, 5, "0%"),
        (0, 0, "–"),  # noqa: RUF001
        (1, 3, "33.3%"),
        (999_999, 1_000_000, "99.99%"),
        (1, 9_999, "under 0.1%"),
    ],
)
def test_a_share_says_100_or_0_only_of_all_or_nothing(part, whole, text):
    assert words.share(part, whole) == text


def test_one_is_not_several():
    assert (words.several(1, "thread"), words.several(1_200, "thread")) == ("1 thread", "1,200 threads")


@pytest.mark.parametrize(
    ("length", "since", "until"),
    [
        (timedelta(seconds=40), "8 March 2013 23:49:03", "23:49:43"),
        (timedelta(minutes=20), "8 March 2013 23:49:03", "9 March 2013 00:09:03"),
        (timedelta(days=1), "8 March 2013 23:49", "9 March 2013 23:49"),
    ],
)
def test_a_span_is_said_to_the_second_if_it_is_short(length, since, until):
    begins = datetime(2013, 3, 8, 23, 49, 3, tzinfo=UTC)

    assert words.times(begins, begins + length) == (since, until)


@pytest.mark.parametrize(("more", "said"), [({}, "of 14 tasks"), ({OTHERS: 900}, "of more than 14 tasks")])
def test_the_other_tasks_together_are_not_one_task(more, said):
    numbers = {f"app.task{number}": 100 - number for number in range(14)} | more
    rows = [{"kind": kind, "n": n, "mean": 1.0, "p95": float(n)} for kind, n in numbers.items()]

    text = sentences.kinds(SimpleNamespace(rows=lambda table, **where: rows)).striptags()

    assert text.startswith("app.task0 took ")
    assert OTHERS not in text
    assert text.endswith(f"The chart shows the 12 most frequent {said}.")
