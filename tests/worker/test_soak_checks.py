"""The checker of the soak of limits finds what it is there for."""

from __future__ import annotations

import pytest

from tests.worker.soak_checks import BURST, CALLS, PACE, TASKS, Lines, exceeded, overlapping, too_fast

SECOND = 10**9


@pytest.fixture
def lines(tmp_path):
    """Of attempts (message, task, when it was claimed, when it ended; None: it was killed with its process)."""

    def written(attempts, *others):
        path, words = tmp_path / "lines", [*others]
        for token, (message, task, claimed, ended) in enumerate(attempts):
            who = f"{token} {message} {token} soaked {TASKS}{task} a"
            words += [
                f"{claimed} claimed {claimed} {message} {token} {claimed // 1_000} 1",
                f"{claimed + 1} began {who}",
            ]
            words += [f"{ended} ended {who}"] if ended else []
        path.write_text("\n".join(words) + "\n")
        return Lines(path)

    return written


def calls(number, ended):
    return [(message, "call", message + 1, ended) for message in range(number)]


def beyond(found):
    return [(scope, number, allowed) for scope, number, allowed, _ in exceeded([*found.attempts()], found.changes())[0]]


def test_one_more_than_a_limit_allows_is_found(lines):
    assert beyond(lines(calls(CALLS, 100))) == []
    assert beyond(lines(calls(CALLS + 1, 100))) == [(f"{TASKS}call/a", CALLS + 1, CALLS)]


def test_an_attempt_counts_until_its_process_was_killed_and_no_longer(lines):
    attempts = [(1, "call", 10, None), (2, "call", 20, 90), (3, "call", 50, 90)]
    assert beyond(lines(attempts, "49 killed 0")) == []
    assert len(beyond(lines(attempts, "51 killed 0"))) == 1
    with pytest.raises(AssertionError, match="neither ended"):
        beyond(lines(attempts))


def test_a_change_holds_from_its_commit_and_either_number_while_it_is_under_way(lines):
    name = f"{TASKS}call/a"
    attempts = [(1, "call", 10_000, 90_000), (2, "call", 50_000, 90_000)]
    assert beyond(lines(attempts, f"20000 changing {name} 1", f"30000 changed {name} 1")) == [(name, 2, 1)]
    assert beyond(lines(attempts, f"20000 changing {name} 1", f"60000 changed {name} 1")) == []
    assert beyond(lines(attempts, f"20000 changing {name} 1")) == []
    cleared = [f"20000 changing {name} 1", f"30000 changed {name} 1", f"35000 changing {name} None"]
    assert beyond(lines(attempts, *cleared, f"40000 changed {name} None")) == []


def test_two_attempts_of_one_message_at_once_are_found(lines):
    one = [(7, "call", 10, 100), (7, "call", 200, 300)]
    assert overlapping([*lines(one).attempts()]) == []
    assert len(overlapping([*lines([*one, (7, "call", 250, 260)]).attempts()])) == 1


def test_a_start_before_its_token_is_there_is_found(lines):
    spaced = [SECOND] * BURST + [SECOND + SECOND // PACE * n for n in (1, 2, 3)]
    assert too_fast([*lines([(n, "pace", at, at + 5) for n, at in enumerate(spaced)]).attempts()]) == {}
    spaced[-1] -= 1_000
    assert too_fast([*lines([(n, "pace", at, at + 5) for n, at in enumerate(spaced)]).attempts()]) == {"a": PACE}
