"""Flows as values: the states of steps, and what becomes of the steps that wait when others have ended.

A flow is a graph of *steps*. A step is one call of a task, or a group of calls, its *members*. It waits until all steps
after which it comes have ended; then it is released, which stores its messages, or skipped. Steps are numbered, and
come after steps with lower numbers only: there is no cycle.

a waiting step that comes     whose predecessors                        otherwise
when                          are such is released
──────────────────────────    ──────────────────────────────────────    ─────────
"succeeded"                   have all succeeded                        skipped
"result:N"                    likewise, and that of N is true           skipped
"failed"                      one of them has not succeeded             skipped
                              (failed or cancelled)
"ended"                       have ended, however                       (never)

If the flow is stopped (cancelled, or its deadline is over), all that waits is skipped at once. If its policy is "stop"
and a step has failed, all that waits for success is.
"""

from __future__ import annotations

import json
from enum import StrEnum
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from delayedq.core.metadata import FLOW, STEP

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

#: The id of a step is that of its flow, shifted by this many bits, plus its number.
NUMBER_BITS = 20

#: Steps of one flow; a group of any number of members is one step.
MAX_STEPS = 1_000

#: How deep chains and groups may contain each other.
MAX_NESTING = 20

#: Members of a group that waits for another step: their calls are kept in the row of the step until then.
MAX_WAITING = 1_000


class StepState(StrEnum):
    """What a step of a flow does."""

    WAITING = "waiting"  #: for other steps
    FILLING = "filling"  #: its members are being stored, chunk by chunk
    RUNNING = "running"  #: its messages live
    SUCCEEDED = "succeeded"  #: all of them have
    FAILED = "failed"  #: one of them failed, or expired
    CANCELLED = "cancelled"  #: one of them was cancelled, and none failed
    SKIPPED = "skipped"  #: it will not run


class Policy(StrEnum):
    """What a flow does when a step has failed."""

    STOP = "stop"  #: nothing is released any more that waits for success
    CONTINUE = "continue"  #: steps that do not come after it go on


class FlowState(StrEnum):
    """What a flow does, or how it ended."""

    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


class When(StrEnum):
    """Of steps that come after others: when they run."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    ENDED = "ended"


#: Comes before the number of a step whose result decides.
RESULT = "result:"

OPEN = {StepState.WAITING, StepState.FILLING, StepState.RUNNING}

_BAD = {StepState.FAILED, StepState.CANCELLED}


class JudgedStep(NamedTuple):
    """A step as it is judged. `after`: the numbers of its predecessors, all lower than its own."""

    number: int
    state: StepState
    after: tuple[int, ...] = ()
    when: str = When.SUCCEEDED


class FlowVerdict(NamedTuple):
    """The steps (numbers) to release and to skip, and the state of the flow then."""

    released: list[int]
    skipped: list[int]
    flow: FlowState


class Stop(NamedTuple):
    """Whether a flow was cancelled, and whether its deadline is over."""

    cancelled: bool = False
    late: bool = False


GOING = Stop()


def judge(
    steps: Iterable[JudgedStep], policy: str, stop: Stop = GOING, is_true: Callable[[int], bool] = lambda _: True
) -> FlowVerdict:
    """What becomes of the steps that wait. `is_true`: whether the result of this step is.

    Raises ValueError for one that comes after itself or a later one, as somebody has written by hand.

    >>> judge([JudgedStep(0, StepState.SUCCEEDED), JudgedStep(1, StepState.WAITING, (0,))], "stop")
    FlowVerdict(released=[1], skipped=[], flow=<FlowState.RUNNING: 'running'>)
    """
    ordered = sorted(steps)
    states = {step.number: step.state for step in ordered}
    has_failed = any(state in _BAD for state in states.values())
    released: list[int] = []
    skipped: list[int] = []
    for step in ordered:
        if step.state is not StepState.WAITING:
            continue
        needs_success = step.when not in {When.FAILED, When.ENDED}
        if any(stop) or (needs_success and has_failed and policy == Policy.STOP):
            goes = False
        elif any(number >= step.number for number in step.after):
            raise ValueError(f"Step {step.number} would wait for ever: it comes after {list(step.after)}.")
        elif any(states[number] in OPEN for number in step.after):
            continue
        else:
            goes = _goes(step.when, {states[number] for number in step.after}, is_true)
        states[step.number] = StepState.RUNNING if goes else StepState.SKIPPED
        (released if goes else skipped).append(step.number)
    return FlowVerdict(released, skipped, _flow_state(set(states.values()), stop))


def _goes(when: str, before: set[StepState], is_true: Callable[[int], bool]) -> bool:
    if when == When.ENDED:
        return True
    if when == When.FAILED:
        return bool(before & _BAD)
    if before - {StepState.SUCCEEDED}:
        return False
    return is_true(int(when.removeprefix(RESULT))) if when.startswith(RESULT) else True


def _flow_state(states: set[StepState], stop: Stop) -> FlowState:
    if states & OPEN:
        return FlowState.RUNNING
    if stop.cancelled:
        return FlowState.CANCELLED
    if stop.late or StepState.FAILED in states:
        return FlowState.FAILED
    return FlowState.CANCELLED if StepState.CANCELLED in states else FlowState.SUCCEEDED


def ended_as(outcomes: set[str]) -> StepState:
    """The state of a step whose members have all ended with these outcomes."""
    if outcomes <= {"succeeded"}:
        return StepState.SUCCEEDED
    return StepState.FAILED if outcomes & {"failed", "expired"} else StepState.CANCELLED


def step_id(flow: int, number: int) -> int:
    """The id of a step."""
    return (flow << NUMBER_BITS) + number


def are_of_a_step(flow: object, number: object) -> bool:
    """Whether these are whole numbers that make an id of 63 bits: somebody may have written others by hand."""
    most = (flow, 2 ** (63 - NUMBER_BITS)), (number, 2**NUMBER_BITS)
    return all(type(part) is int and 0 <= part < limit for part, limit in most)


def flow_of(step: int) -> int:
    """The id of the flow of a step (by its id)."""
    return step >> NUMBER_BITS


def number_of(step: int) -> int:
    """The number of a step (by its id) within its flow."""
    return step & ((1 << NUMBER_BITS) - 1)


def numbers(text: str) -> tuple[int, ...]:
    """The predecessors of a step, as its row has them."""
    return tuple(json.loads(text))


# Where the steps of a flow stand in its picture, and which of them its duration follows from.


#: Of the box of a step, and between two of them, in pixels.
WIDTH, HEIGHT, ACROSS, DOWN, MARGIN = 190, 52, 56, 18, 10


class Corner(NamedTuple):
    """The upper left corner of a box."""

    x: int
    y: int


class Picture(NamedTuple):
    """The boxes of the steps by their numbers, the lines between them, and the size of all."""

    places: dict[int, Corner]
    lines: list[tuple[int, int, str]]
    width: int
    height: int


def picture(after: Mapping[int, Sequence[int]]) -> Picture:
    """The picture of steps with these predecessors, from left to right: each in a column behind all of those.

    A line passes behind no box: in each column between its ends it has a place of its own, as a box would have. Those
    of one step share it.
    """
    columns: dict[int, int] = {}
    rows: dict[int, int] = {}
    places: dict[int, Corner] = {}
    passed: dict[tuple[int, int], Corner] = {}
    for number in sorted(after):
        column = columns[number] = max((columns[before] + 1 for before in after[number]), default=0)
        for before in after[number]:
            for between in range(columns[before] + 1, column):
                if (before, between) not in passed:
                    passed[before, between] = _next_place(rows, between)
        places[number] = _next_place(rows, column)
    lines = []
    for number in after:
        for before in after[number]:
            way = [passed[before, between] for between in range(columns[before] + 1, columns[number])]
            lines.append((before, number, _line([places[before], *way, places[number]])))
    width = 2 * MARGIN + len(rows) * (WIDTH + ACROSS) - ACROSS
    return Picture(places, lines, width, 2 * MARGIN + max(rows.values(), default=1) * (HEIGHT + DOWN) - DOWN)


def _next_place(rows: dict[int, int], column: int) -> Corner:
    row = rows.get(column, 0)
    rows[column] = row + 1
    return Corner(MARGIN + column * (WIDTH + ACROSS), MARGIN + row * (HEIGHT + DOWN))


def _line(way: Sequence[Corner]) -> str:
    """The path of a line from the first of these boxes to the last, through the places of the others."""
    path = f"M{way[0].x + WIDTH},{way[0].y + HEIGHT // 2}"
    for start, end in pairwise(way):
        x, y, to_x, to_y = start.x + WIDTH, start.y + HEIGHT // 2, end.x, end.y + HEIGHT // 2
        middle = (x + to_x) // 2
        path += f" H{x} C{middle},{y} {middle},{to_y} {to_x},{to_y}"
    return path


def critical_path(after: Mapping[int, Sequence[int]], ended: Mapping[int, float]) -> set[int]:
    """The steps without which the flow would have ended earlier: from the last one to end, always the last before it.

    ended: when each step ended, of those that have.

    >>> sorted(critical_path({0: [], 1: [], 2: [0, 1]}, {0: 1.0, 1: 5.0, 2: 6.0}))
    [1, 2]
    """
    path: set[int] = set()
    candidates = list(ended)
    while candidates:
        last = max(candidates, key=lambda number: (ended[number], number))
        path.add(last)
        candidates = [before for before in after[last] if before in ended]
    return path


# Of which step a message is.


@lru_cache(maxsize=1_000)  # that of all members of a group is the same
def step_of(metadata: str | None) -> tuple[int, int] | None:
    """The flow and the number of the step of a message; None if it is in none, or if somebody has spoiled that."""
    if not metadata or FLOW not in metadata:
        return None
    try:
        loaded = json.loads(metadata)
        place = loaded[FLOW], loaded[STEP]
    except (ValueError, RecursionError, TypeError, KeyError):
        return None
    return place if are_of_a_step(*place) else None


@lru_cache(maxsize=1_000)
def has_step_only(metadata: str) -> bool:
    """Whether it says of which step the message is, and nothing else."""
    return step_of(metadata) is not None and json.loads(metadata).keys() == {FLOW, STEP}
