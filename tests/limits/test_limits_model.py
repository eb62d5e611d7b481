"""Whatever happens to messages with limits, against a model of them: each limit by itself, and each pair.

Hypothesis chooses what happens, and in one long run a random number generator. DELAYEDQ_TEST_EXAMPLES=100 tries as many
others, at random; DELAYEDQ_TEST_OPERATIONS=100000 makes the run as long.
"""

from __future__ import annotations

import os
import random
from fractions import Fraction
from itertools import combinations, pairwise

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from delayedq.limits import setting
from tests.limits.limits_model import LIMITS
from tests.limits.limits_run import OPERATIONS, STEP, Run
from tests.nightly import few_of
from tests.store.given import NOW, at

pytestmark = pytest.mark.slow

#: So many of each limit by itself, or else 4; and of each pair, or else 1.
EXAMPLES = os.environ.get("DELAYEDQ_TEST_EXAMPLES")
LENGTH = int(os.environ.get("DELAYEDQ_TEST_OPERATIONS", "150"))
SETTINGS = settings(
    stateful_step_count=30,
    derandomize=EXAMPLES is None,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
CHOICES = [*((name,) for name in LIMITS), *combinations(LIMITS, 2)]
#: Each by itself, and each with the next one; the other pairs wait for the night.
FEW = [*((name,) for name in LIMITS), *pairwise(LIMITS)]
#: What keeps a run going happens more often than the rest.
WEIGHTS = {"offer": 3, "claim": 4, "claim_all": 2, "end": 6, "end_and_claim": 3, "pass_time": 4}


def one_operation(name):
    return st.fixed_dictionaries(
        {"name": st.just(name), **{k: st.sampled_from(v) for k, v in OPERATIONS[name].items()}}
    )


class LimitMachine(RuleBasedStateMachine):
    names = ()

    @initialize()
    def begin(self):
        self.run = Run(self.names)
        self.run.offer("a", "tests.one", "mail", 6, 0.0)

    @rule(what=st.one_of([one_operation(name) for name in OPERATIONS]))
    def happens(self, what):
        getattr(self.run, what["name"])(**{name: value for name, value in what.items() if name != "name"})

    def teardown(self):
        if hasattr(self, "run"):
            self.run.close()


@pytest.fixture
def known(monkeypatch):
    """Live limits are set of the scopes of the model, which are those of no task."""
    monkeypatch.setattr(setting, "check_scope", lambda scope, channel: None)
    monkeypatch.setattr(setting, "_check_sized", lambda scope, channel: None)

    def define(run_names):
        model = Run(run_names).model
        monkeypatch.setattr(setting, "_defined", model.defined)

    return define


@pytest.mark.parametrize("names", few_of(CHOICES, FEW), ids=" and ".join)
def test_no_limit_is_exceeded_and_nothing_waits_without_one(store, known, names):
    known(names)
    machine = type("Machine", (LimitMachine,), {"names": names})
    run_state_machine_as_test(
        machine, settings=settings(SETTINGS, max_examples=int(EXAMPLES or (4 if len(names) == 1 else 1)))
    )


def test_after_many_operations_what_is_counted_is_what_is_leased(store, known):
    names = ("channel concurrency", "task rate", "queue concurrency", "shared concurrency", "channel size")
    known(names)
    source, run = random.Random(LENGTH), Run(names)
    chosen = source.choices(list(OPERATIONS), [WEIGHTS.get(name, 1) for name in OPERATIONS], k=LENGTH)
    for name in chosen:
        getattr(run, name)(**{key: source.choice(values) for key, values in OPERATIONS[name].items()})
    run.check_counts()
    run.close()


def test_the_moments_of_the_model_are_exact():
    assert Fraction(STEP) == Fraction(1, 4)
    assert at(STEP) > NOW


def test_what_a_cancelled_message_leaves_of_a_share_is_taken_by_the_next_claim(store, known):
    """Four places, of which a channel with a share of three gets two, as its first message is not there any more."""
    names = ("shared concurrency", "channel window")
    known(names)
    run = Run(names)
    run.offer("a", "tests.one", "mail", 6, 0.0)
    run.unschedule(0)
    run.offer("b", "tests.one", "mail", 5, 0.0)
    run.change("tests.one", "a", {"share": 3})

    assert run.claim(100) == 0.0
    run.claim_all()
    held = [run.model.held(("mail", "tests.one", channel), run.now) for channel in "ab"]
    run.close()
    assert held == [3, 1]
