from __future__ import annotations

import random
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from delayedq.core.backoff import Constant, Exponential, as_backoff

QUICK = settings(max_examples=100, deadline=None)
SECOND, HOUR = timedelta(seconds=1), timedelta(hours=1)


class Drawn(random.Random):
    """Draws what it is told to."""

    def __init__(self, draw):
        super().__init__()
        self.draw = draw

    def random(self):
        return self.draw


def test_the_delay_grows_by_the_factor_up_to_the_maximum():
    backoff = Exponential(5 * SECOND, factor=4, maximum=HOUR, jitter=0)
    assert [backoff(attempt).total_seconds() for attempt in range(1, 8)] == [5, 20, 80, 320, 1280, 3600, 3600]


def test_the_default_is_five_seconds_to_an_hour_half_of_it_random():
    assert Exponential() == Exponential(5 * SECOND, 4.0, HOUR, 0.5)


@pytest.mark.parametrize(
    ("jitter", "draw", "expected"), [(0, 0.9, 80), (0.5, 0, 80), (0.5, 0.5, 60), (0.5, 1, 40), (1, 1, 0), (1, 0.25, 60)]
)
def test_only_the_share_of_the_jitter_is_random(jitter, draw, expected):
    assert Exponential(jitter=jitter)(3, Drawn(draw)) == expected * SECOND


def test_the_maximum_is_spread_too():
    backoff = Exponential()
    delays = {backoff(20, random.Random(seed)) for seed in range(50)}
    assert len(delays) == 50
    assert HOUR / 2 <= min(delays) < max(delays) <= HOUR


def test_a_seeded_generator_makes_it_repeatable_and_none_is_needed():
    assert Exponential()(3, random.Random(1)) == Exponential()(3, random.Random(1))
    assert 40 * SECOND <= Exponential()(3) <= 80 * SECOND


@pytest.mark.parametrize("factor", [1.0, 1.001, 4, 4.0, 1e300])
def test_no_attempt_is_too_many(factor):
    backoff = Exponential(factor=factor, maximum=timedelta.max, jitter=0)
    assert 5 * SECOND <= backoff(10_000) <= timedelta.max
    assert backoff(1_000_000_000) >= backoff(10_000)


@QUICK
@given(
    initial=st.timedeltas(timedelta(microseconds=1), timedelta(days=1)),
    factor=st.floats(1, 100),
    jitter=st.floats(0, 1),
    attempt=st.integers(1, 100_000),
)
def test_a_delay_stays_between_its_fixed_share_and_the_maximum(initial, factor, jitter, attempt):
    backoff = Exponential(initial, factor, timedelta(days=2), jitter)
    rounding = timedelta(microseconds=1)
    longest = Exponential(initial, factor, timedelta(days=2), 0)(attempt)
    assert longest * (1 - jitter) - rounding <= backoff(attempt) <= longest <= timedelta(days=2)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"initial": timedelta(0)}, "initial delay must be above zero"),
        ({"initial": -SECOND}, "initial delay must be above zero"),
        ({"maximum": SECOND}, "maximum, 0:00:01, is below its initial delay, 0:00:05"),
        ({"factor": 0.5}, "factor must be finite and at least 1"),
        ({"factor": float("inf")}, "factor must be finite"),
        ({"factor": float("nan")}, "factor must be finite"),
        ({"jitter": 1.1}, "jitter is a share between 0 and 1"),
        ({"jitter": -0.1}, "jitter is a share between 0 and 1"),
    ],
)
def test_impossible_options_are_refused(options, complaint):
    with pytest.raises(ValueError, match=complaint):
        Exponential(**options)


@pytest.mark.parametrize("option", ["initial", "maximum"])
def test_a_number_is_no_duration(option):
    with pytest.raises(TypeError, match=f"{option} is a timedelta, such as .*, not 5"):
        Exponential(**{option: 5})


def test_a_timedelta_is_a_constant_backoff():
    backoff = as_backoff(7 * SECOND)
    assert backoff == Constant(7 * SECOND)
    assert {backoff(1), backoff(2), backoff(1000)} == {7 * SECOND}


@pytest.mark.parametrize("backoff", [Exponential(), Constant(SECOND), lambda attempt: attempt * SECOND])
def test_a_callable_is_taken_as_it_is(backoff):
    assert as_backoff(backoff) is backoff


@pytest.mark.parametrize("value", [5, 5.0, None, "5s", True])
def test_anything_else_is_no_backoff(value):
    with pytest.raises(TypeError, match="A backoff is a timedelta, a list of them, or a function of the number"):
        as_backoff(value)


def test_a_class_is_not_mistaken_for_its_instance():
    with pytest.raises(TypeError, match=r"Exponential\(\), not Exponential"):
        as_backoff(Exponential)


def test_a_negative_constant_is_refused():
    with pytest.raises(ValueError, match="can't be negative"):
        as_backoff(-SECOND)


def test_a_list_of_timedeltas_is_taken_one_after_the_other_and_the_last_again():
    backoff = as_backoff([SECOND, 5 * SECOND, 60 * SECOND])
    assert [backoff(attempt).total_seconds() for attempt in (1, 2, 3, 4, 1000)] == [1, 5, 60, 60, 60]


@pytest.mark.parametrize(
    ("delays", "error", "reason"),
    [([], ValueError, "can't be empty"), ([5], TypeError, "such as .* not 5"), ((-SECOND,), ValueError, "negative")],
)
def test_a_list_of_anything_else_is_no_backoff(delays, error, reason):
    with pytest.raises(error, match=reason):
        as_backoff(delays)
