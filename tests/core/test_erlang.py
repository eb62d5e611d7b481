"""Erlang's C formula, against its definition, a birth-death process solved by hand, and published tables."""

from __future__ import annotations

from fractions import Fraction
from math import exp, factorial, inf, log

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from delayedq.core.scaling import Traffic, chance_to_wait


def by_definition(threads, load):
    """The sum of the textbook, in fractions."""
    full = load**threads / factorial(threads) * threads / (threads - load)
    return full / (sum(load**busy / factorial(busy) for busy in range(threads)) + full)


@given(st.integers(1, 40), st.fractions(Fraction(1, 50), Fraction(49, 50)))
@settings(max_examples=50, deadline=None)
def test_the_chance_to_wait_is_that_of_the_definition(threads, utilisation):
    load = utilisation * threads

    assert chance_to_wait(threads, float(load)) == pytest.approx(float(by_definition(threads, load)), rel=1e-9)


@pytest.mark.parametrize(
    ("threads", "load", "expected"), [(1, 0.5, 0.5), (2, 1, 1 / 3), (3, 2, 4 / 9), (10, 8, 0.4092)]
)
def test_known_values(threads, load, expected):
    assert chance_to_wait(threads, load) == pytest.approx(expected, abs=5e-5)


def test_a_thousand_threads_are_no_problem():
    assert 0 < chance_to_wait(10_000, 9_950) < 1


def test_too_few_threads_make_everybody_wait_for_ever():
    traffic = Traffic(rate=10, run_seconds=0.3)

    assert chance_to_wait(3, traffic.load) == 1
    assert traffic.mean_wait(3) == traffic.wait(0.5, 3) == inf


def test_one_thread_waits_as_m_m_1_does():
    traffic = Traffic(rate=0.8, run_seconds=1)

    assert traffic.mean_wait(1) == pytest.approx(0.8 / (1 - 0.8))
    assert traffic.wait(0.95, 1) == pytest.approx(log(0.8 / 0.05) / 0.2)
    assert 0.8 * exp(-0.2 * traffic.wait(0.95, 1)) == pytest.approx(0.05)


def test_most_wait_not_at_all_when_threads_are_free():
    assert Traffic(rate=1, run_seconds=0.1).wait(0.85, 1) == 0


def test_regular_run_times_halve_the_wait_as_in_m_d_1():
    chance, regular = Traffic(0.8, 1), Traffic(0.8, 1, run_variability=0)

    assert regular.mean_wait(1) == pytest.approx(chance.mean_wait(1) / 2)


def test_bursts_stretch_it():
    assert Traffic(0.8, 1, arrival_variability=9).mean_wait(1) == pytest.approx(5 * Traffic(0.8, 1).mean_wait(1))


def test_nothing_arrives_so_one_thread_does():
    assert Traffic(0, 0).threads_for(0, 0.99) == 1
    assert Traffic(0, 0).mean_wait(1) == 0


@given(
    st.floats(0.001, 500),
    st.floats(0.001, 10),
    st.floats(0, 100),
    st.floats(0, 100),
    st.floats(0, 60),
    st.sampled_from([0.5, 0.95, 0.999, 0.999999]),
)
@settings(max_examples=200, deadline=None)
def test_the_answer_is_the_fewest_threads_that_do(rate, run, arrivals, runs, seconds, quantile):
    traffic = Traffic(rate, run, arrivals, runs)
    threads = traffic.threads_for(seconds, quantile)

    assert traffic.wait(quantile, threads) <= seconds
    assert threads == 1 or traffic.wait(quantile, threads - 1) > seconds


@pytest.mark.parametrize("wrong", [-1, inf, float("nan")])
def test_traffic_is_finite_and_not_negative(wrong):
    with pytest.raises(ValueError, match="rate is finite"):
        Traffic(wrong, 1)
    with pytest.raises(ValueError, match="run_variability is finite"):
        Traffic(1, 1, 1, wrong)


@pytest.mark.parametrize(("seconds", "quantile"), [(-1, 0.5), (1, 0), (1, 1)])
def test_a_target_is_a_share_and_a_time(seconds, quantile):
    with pytest.raises(ValueError, match="between 0 and 1"):
        Traffic(1, 1).threads_for(seconds, quantile)
