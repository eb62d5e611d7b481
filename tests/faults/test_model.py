"""Each state of the small model holds what must hold, and a model with a broken rule does not."""

from __future__ import annotations

import pytest

from tests.faults.model import BROKEN, Model, State, explore, wrong


def test_every_state_holds_what_must_hold_and_can_end():
    found = explore(Model())

    assert (found.wrong, found.trace) == ("", ())
    assert found.states > 50_000


@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_rule_is_found_with_the_shortest_way_there(broken):
    model = Model(broken)

    found = explore(model)

    assert found.wrong
    state = State()
    for name in found.trace:
        assert not wrong(state)
        state = dict(model.actions(state))[name]
    assert wrong(state) == ("" if found.wrong == "it never ends" else found.wrong)
