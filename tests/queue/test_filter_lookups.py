"""What filter() understands and refuses beside equality: several values, ranges, prefixes of keys."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import pytest

from delayedq.exceptions import InvalidQueue, NotStorable
from delayedq.queue import BYTES, TEXT
from tests.queue.test_filter import fill, taken
from tests.store.given import NOW, together


def test_several_values_ranges_and_a_prefix_are_asked_together(queue):
    fill(
        queue, UA1={"region": "eu", "n": 3}, UA2={"region": "us", "n": 4}, UA3={"region": "asia", "n": 5}, LH1={"n": 4}
    )
    queue.offer_or_update(None, {"region": "eu", "n": 4}, NOW)

    assert taken(queue.filter(payload__region__in=["us", "asia"], payload__n__lt=5)) == ["UA2"]
    assert taken(queue.filter(payload__n__gte=3, payload__n__lte=4).filter(key__startswith="UA")) == ["UA1"]
    assert taken(queue.filter(payload__n__gt=3, key__startswith="L")) == ["LH1"]
    assert taken(queue) == ["UA3", None]


def test_no_value_matches_nothing(queue):
    fill(queue, a={"x": None}, b={})
    view = queue.filter(payload__x__in=[])
    assert (taken(view), view.count()) == ([], 0)


def test_a_name_that_is_a_lookup_too_is_said_with_exact(queue):
    fill(queue, a={"in": {"gte": 1}, "contains": 2, "exact": 3}, b={})
    for wanted in (
        {"payload__in__gte__exact": 1},
        {"payload__contains__exact": 2},
        {"payload__exact__exact": 3},
        {"payload__in__gte__in": [0, 1]},
    ):
        assert next(queue.filter(**wanted).browse().readings).key == "a"


def test_a_prefix_is_no_pattern_and_knows_upper_case(queue):
    fill(queue, **dict.fromkeys(("UA%5", "UA15", "ua%5", "U_", "UX", "UA*", "\U0010ffff", "é", "é"), 1))
    for prefix, expected in (("UA%", ["UA%5"]), ("U_", ["U_"]), ("UA*", ["UA*"]), ("é", ["é"]), ("ua", ["ua%5"])):
        assert taken(queue.filter(key__startswith=prefix)) == expected
    assert taken(queue.filter(key__startswith="\U0010ffff")) == ["\U0010ffff"]


def test_a_prefix_asks_nothing_of_the_payload(make):
    for name, serializer, payload in (("texts", TEXT, "no json"), ("bytes", BYTES, b"\0")):
        queue = make(name, serializer)
        queue.offer_or_update("a1", payload, NOW)
        queue.offer_or_update("b1", payload, NOW)
        assert (taken(queue.filter(key__startswith="b")), list(queue.browse())) == (["b1"], [payload])


def test_a_key_of_the_greatest_length_begins_with_itself(queue):
    key = "\U0010ffff" * 200
    fill(queue, **{key: 1, "a": 1})
    assert taken(queue.filter(key__startswith=key)) == [key]


def test_prefixes_that_exclude_each_other_match_nothing(queue):
    fill(queue, ab=1, ac=1)
    assert taken(queue.filter(key__startswith="a").filter(key__startswith="ac")) == ["ac"]
    assert taken(queue.filter(key__startswith="ab").filter(key__startswith="ac")) == []


def test_a_prefix_keeps_to_due_times_priorities_and_leases(make, clock):
    queue = make(priorities=[5])
    for key, priority, seconds in (("a1", 0, -3), ("a2", 5, 0), ("a3", 0, -9), ("a4", 5, 9), ("b", 5, -9)):
        queue.offer_or_update(key, 1, NOW.replace(second=30 + seconds), priority=priority)
    view = queue.filter(key__startswith="a")

    assert [envelope.key for envelope in view.try_poll_many(2)] == ["a2", "a3"]
    assert taken(view) == ["a1"]
    clock.move(61)
    assert taken(view) == ["a2", "a4", "a3", "a1"]


def test_consumers_of_a_prefix_compete_and_each_gets_what_is_due(queue):
    fill(queue, **{f"a{number:02}": 1 for number in range(40)})
    view = queue.filter(key__startswith="a")
    found = together(*[lambda: [envelope.key for envelope in view.try_poll_many(10)]] * 4)

    assert sorted([*(key for keys in found for key in keys), *taken(view)]) == [f"a{number:02}" for number in range(40)]


@pytest.mark.parametrize(
    "value",
    [True, None, "3", [3], Decimal(3), Fraction(3), 10**64, -(10**64), float("nan"), float("inf"), NOW],
    ids=repr,
)
def test_a_range_takes_numbers_alone(queue, value):
    for lookup in ("gt", "gte", "lt", "lte"):
        with pytest.raises(InvalidQueue, match=rf"payload__x__{lookup} takes an int .*timestamp"):
            queue.filter(**{f"payload__x__{lookup}": value})


@pytest.mark.parametrize("values", ["us", b"us", {"us": 1}, 5, None, range(1001)], ids=repr)
def test_several_values_are_a_list(queue, values):
    with pytest.raises(InvalidQueue, match="payload__x__in takes"):
        queue.filter(payload__x__in=values)
    with pytest.raises(NotStorable, match="payload__x__in"):
        queue.filter(payload__x__in=[object()])


@pytest.mark.parametrize("prefix", ["", None, 5, ["a"], "a\0", "\ud800", "a" * 201, b"a"], ids=repr)
def test_what_no_key_begins_with_is_refused(queue, prefix):
    with pytest.raises(InvalidQueue, match="key__startswith takes a text of 1 to 200"):
        queue.filter(key__startswith=prefix)


@pytest.mark.parametrize("name", ["payload__x__contains", "payload__isnull", "payload__x__startswith"])
def test_what_django_has_and_a_filter_has_not_is_refused_with_the_cure(queue, name):
    with pytest.raises(InvalidQueue, match=f"{name}__exact"):
        queue.filter(**{name: "a"})


@pytest.mark.parametrize("name", ["payload__in", "payload__gte", "payload__exact", "key", "key__in", "key__gte"])
def test_a_lookup_without_a_name_is_refused(queue, name):
    with pytest.raises(InvalidQueue, match="payload__name"):
        queue.filter(**{name: [1]})
