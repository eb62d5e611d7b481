"""Filters of any kind over payloads and keys of any kind, against what a filter is in plain Python; Hypothesis chooses.

The examples are the same in every run. DELAYEDQ_TEST_EXAMPLES=1000 tries 1000 others, at random.
"""

from __future__ import annotations

import math
import os
import sys
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from delayedq import BatchedMessage
from delayedq.models import FinishedMessage, Message
from delayedq.store import bare_queues
from tests.store.given import NOW

EXAMPLES = os.environ.get("DELAYEDQ_TEST_EXAMPLES")
SETTINGS = settings(
    max_examples=int(EXAMPLES or 25),
    derandomize=EXAMPLES is None,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate],
)

# The oracle

LARGEST = sys.float_info.max
#: More bits than this are no number in JSON.
BITS = 2048
MISSING = object()


class Asked(NamedTuple):
    path: tuple
    lookup: str
    value: object


def passes(payload, asked):
    for name in asked.path:
        payload = payload.get(name, MISSING) if isinstance(payload, dict) else MISSING
    if payload is MISSING:
        return False
    if asked.lookup == "exact":
        return is_same(payload, asked.value)
    if asked.lookup == "in":
        return any(is_same(payload, value) for value in asked.value)
    return is_number(payload) and lies(payload, asked.lookup, asked.value)


def is_same(one, other):
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(is_same(one[name], other[name]) for name in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(is_same, one, other))
    return one == other and math.copysign(1, one if type(one) is float else 1) == math.copysign(
        1, other if type(other) is float else 1
    )


def is_number(value):
    return type(value) is float or (type(value) is int and value.bit_length() <= BITS)


def lies(value, lookup, bound):
    if type(value) is float or type(bound) is float:
        value, bound = (float(max(-LARGEST, min(LARGEST, number))) for number in (value, bound))
    order = (value > bound) - (value < bound)
    return {"gt": order > 0, "gte": order >= 0, "lt": order < 0, "lte": order <= 0}[lookup]


# What is tried

NUMBERS = st.one_of(
    st.integers(-3, 3),
    st.integers(-(10**64) + 1, 10**64 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(
        [
            *(
                2**53,
                2**53 + 1,
                -(2**53) - 1,
                2**63 - 1,
                2**63,
                2**63 + 1,
                -(2**63) - 1,
                2**64,
                10**22,
                10**23,
                10**64 - 1,
            ),
            *(
                float(2**53),
                1e22,
                1e23,
                -1e23,
                1e64,
                0.1,
                0.2,
                0.30000000000000004,
                1 / 3,
                -0.0,
                5e-324,
                -LARGEST,
                LARGEST,
            ),
        ]
    ),
)
LARGE = st.sampled_from([10**64, -(10**65), 10**70 + 1, int(LARGEST), -int(LARGEST) * 10, 2**BITS - 1, 2**BITS])
TEXTS = st.one_of(
    st.text(st.characters(), max_size=5),
    st.sampled_from(
        [
            "",
            " ",
            "a",
            "a ",
            "A",
            "ä",
            "null",
            "true",
            "1",
            '"',
            "'",
            "\\",
            "\\u0041",
            "\\\\u0000",
            "\0",
            "a\0b",
            "%s",
            "\ud83d",
            "{}",
        ]
    ),
)
ATOMS = st.one_of(st.none(), st.booleans(), NUMBERS, LARGE, TEXTS)
VALUES = st.recursive(
    ATOMS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("xyé "), inner, max_size=2),
    max_leaves=4,
)
PAYLOADS = st.one_of(
    VALUES,
    VALUES.map(lambda value: {"x": value}),
    NUMBERS.map(lambda value: {"x": value}),
    VALUES.map(lambda value: {"x": {"y": value}, "y": 1}),
)
NO_JSON = ["", "x", '{"x":1', '{"x":1}}', "NaN", '{"x":Infinity}', "[1,]", "'x'", '{"x":"\t"}', "\\u0000"]
RANGES = ["gt", "gte", "lt", "lte"]


@st.composite
def cases(draw):
    """Payloads, and conditions that some of them may meet, since they are made of their own values."""
    payloads = draw(st.lists(PAYLOADS, min_size=2, max_size=8))
    found = [(path, value) for payload in payloads for path, value in leaves(payload)]
    numbers = [value for _, value in found if is_number(value) and abs(value) < 10**64] or [0]
    paths = st.sampled_from([*(path for path, _ in found), ("x",), ("x", "y")])
    values = st.sampled_from([value for _, value in found]) | ATOMS if found else ATOMS
    bounds = st.sampled_from([beside for number in numbers for beside in neighbours(number)]) | NUMBERS
    asked = st.one_of(
        st.builds(Asked, paths, st.just("exact"), values),
        st.builds(Asked, paths, st.just("in"), st.lists(values, max_size=3)),
        st.builds(Asked, paths, st.sampled_from(RANGES), bounds),
        st.builds(Asked, paths, st.sampled_from(RANGES), bounds),
    )
    return payloads, draw(st.lists(st.lists(asked, min_size=1, max_size=2), min_size=3, max_size=5))


def leaves(payload):
    if isinstance(payload, dict):
        for name in payload.keys() & {"x", "y"}:
            yield (name,), payload[name]
            yield from (((name, *path), value) for path, value in leaves(payload[name]))


def neighbours(number):
    yield number
    if type(number) is int:
        yield from (number - 1, number + 1)
        yield float(number)
    elif abs(number) < LARGEST:
        yield from (math.nextafter(number, -math.inf), math.nextafter(number, math.inf))
        if abs(number) < 1e63:
            yield from (math.floor(number), math.ceil(number))


def bounded(asked):
    """Two conditions of one name are one: the last."""
    named = {"__".join(["payload", *one.path, one.lookup]): one for one in asked}
    return {name: one.value for name, one in named.items() if is_allowed(one)}, [*filter(is_allowed, named.values())]


def is_allowed(one):
    return one.lookup not in RANGES or (
        math.isfinite(one.value) and (type(one.value) is float or abs(one.value) < 10**64)
    )


def test_a_filter_takes_what_plain_python_takes(queue):
    @SETTINGS
    @given(cases(), st.sampled_from(NO_JSON))
    def any_case(case, no_json):
        payloads, filters = case
        try:
            queue.offer_batch(BatchedMessage(None, f"{n}", payload, NOW) for n, payload in enumerate(payloads))
            queue.offer_or_update("no json", 0, NOW)
            Message.objects.filter(key="no json").update(payload=no_json)
            for asked in filters:
                wanted, conditions = bounded(asked)
                if wanted:
                    expected = [n for n, payload in enumerate(payloads) if all(passes(payload, c) for c in conditions)]
                    takes(queue.filter(**wanted), {f"{n}" for n in expected})
        finally:
            Message.objects.all().delete()
            FinishedMessage.objects.all().delete()

    any_case()


def takes(view, expected):
    assert {reading.key for reading in view.browse().readings} == expected
    assert view.count() == len(expected)
    batch = view.try_poll_many(99)
    assert {envelope.key for envelope in batch} == expected
    batch.release()


LETTERS = st.sampled_from([*"aAäÄ_%\\*?[]' |\ud7ff\ue000\uffff\U00010000\U0010ffff", "a ", "a\u0308", "UA"])
KEYS = st.lists(LETTERS, min_size=1, max_size=4).map("".join)


@pytest.mark.slow
@pytest.mark.parametrize("few", [1_000, 2, -1], ids=["by key", "either way", "by due time"])
def test_a_prefix_takes_the_keys_that_begin_so_whatever_way_they_are_found(queue, monkeypatch, few):
    monkeypatch.setattr(bare_queues, "FEW", few)

    @SETTINGS
    @given(st.sets(KEYS, min_size=2, max_size=12), st.lists(KEYS, min_size=2, max_size=4))
    def any_keys(keys, prefixes):
        try:
            queue.offer_batch(BatchedMessage(None, key, {"x": len(key)}, NOW) for key in keys)
            queue.offer_or_update(None, {"x": 1}, NOW)
            for prefix in {*prefixes, *(key[:2] for key in keys)}:
                beginning = {key for key in keys if key.startswith(prefix)}
                takes(queue.filter(key__startswith=prefix), beginning)
                takes(
                    queue.filter(key__startswith=prefix, payload__x__gt=1), {key for key in beginning if len(key) > 1}
                )
        finally:
            Message.objects.all().delete()

    any_keys()
