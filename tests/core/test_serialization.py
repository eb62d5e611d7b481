from __future__ import annotations

import enum
import json
import sys
from collections import Counter, OrderedDict, defaultdict
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from math import inf, nan
from typing import NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from delayedq.core import serialization
from delayedq.core.serialization import dump_call, dumps, load_call, loads
from delayedq.exceptions import NotStorable

QUICK = settings(max_examples=150, deadline=None)
NEW_YORK = ZoneInfo("America/New_York")


class Colour(enum.Enum):
    RED = 1
    BLUE = object()
    ROT = 1  # noqa: PIE796 - an alias


class Level(enum.IntEnum):
    LOW = 1


class Word(enum.StrEnum):
    YES = "yes"


class Access(enum.Flag):
    READ = enum.auto()
    WRITE = enum.auto()


class Flight:
    class Status(enum.Enum):
        DELAYED = "d"


class Point(NamedTuple):
    x: int
    y: int


MEMBERS = [Colour.RED, Colour.BLUE, Level.LOW, Word.YES, Flight.Status.DELAYED, *Access, Access(0), Access(3)]


def exactly(value):
    """A form that tells apart what `==` does not: 1, True and 1.0, the two zeros, folds, zones, NaN and itself."""
    match value:
        case list() | tuple():
            return type(value), [exactly(element) for element in value]
        case set() | frozenset():
            return type(value), sorted((exactly(element) for element in value), key=repr)
        case dict():
            return dict, sorted(((exactly(key), exactly(element)) for key, element in value.items()), key=repr)
        case datetime() | time():
            zone = value.tzinfo if isinstance(value.tzinfo, ZoneInfo) else None
            return type(value), value.replace(tzinfo=None).isoformat(), value.utcoffset(), zone, value.fold
    return type(value), repr(value)


# Everything that can be stored

ALL_TEXT = st.text(st.characters(codec=None))
TORN_TEXT = st.text(st.sampled_from('a\ud83d\ude00\x00\\"$ü'))
TEXTS = st.one_of(ALL_TEXT, TORN_TEXT, st.just("$"))
ZONES = st.one_of(
    st.none(),
    st.just(UTC),
    st.sampled_from(["UTC", "America/New_York", "Europe/Dublin", "Australia/Lord_Howe", "Africa/Monrovia"]).map(
        ZoneInfo
    ),
    st.integers(-86399, 86399).map(lambda seconds: timezone(timedelta(seconds=seconds))),
)
YEARS = {"min_value": datetime.fromisoformat("1900-01-01"), "max_value": datetime.fromisoformat("2200-01-01")}
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers().map(lambda number: number << 3000),
    st.floats(),
    TEXTS,
    st.binary(max_size=40),
    st.decimals(),
    st.sampled_from(["sNaN", "-NaN123", "1E+999", "-0.00", "1.10"]).map(Decimal),
    st.uuids(),
    st.dates(),
    st.builds(
        lambda moment, fold: moment.replace(fold=fold), st.datetimes(timezones=ZONES, **YEARS), st.integers(0, 1)
    ),
    st.datetimes(),
    st.builds(lambda moment, fold: moment.replace(fold=fold), st.times(timezones=ZONES), st.integers(0, 1)),
    st.timedeltas(),
    st.sampled_from(MEMBERS),
)
HASHABLE = st.recursive(
    SCALARS.filter(lambda value: not (isinstance(value, Decimal) and value.is_snan())),
    lambda inner: st.one_of(st.lists(inner, max_size=3).map(tuple), st.frozensets(inner, max_size=3)),
    max_leaves=4,
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.sets(HASHABLE, max_size=3),
        st.dictionaries(TEXTS, inner, max_size=4),
        st.dictionaries(HASHABLE, inner, max_size=3),
    ),
    max_leaves=8,
)


@QUICK
@given(VALUES)
def test_a_value_comes_back_exactly(value):
    text = dumps(value)
    assert exactly(loads(text)) == exactly(value)
    assert dumps(loads(text)) == text


@QUICK
@given(VALUES)
def test_the_text_is_ascii_and_strict_json(value):
    text = dumps(value)
    assert text.isascii()
    assert "\x00" not in text
    json.loads(text, parse_constant=pytest.fail)


@QUICK
@given(st.lists(VALUES, max_size=3).map(tuple), st.dictionaries(TEXTS, VALUES, max_size=3))
def test_a_call_comes_back_exactly(args, kwargs):
    assert exactly(load_call(dump_call(args, kwargs))) == exactly((list(args), kwargs))


@QUICK
@given(st.dictionaries(st.one_of(TEXTS, st.integers(), st.uuids()), st.integers()), st.randoms())
def test_the_order_of_a_dict_and_of_a_set_does_not_change_the_text(value, rng):
    entries = list(value.items())
    rng.shuffle(entries)
    assert dumps(dict(entries)) == dumps(value)
    assert dumps({key for key, _ in entries}) == dumps(set(value))


def test_the_order_of_a_set_does_not_depend_on_the_hash_seed():
    assert dumps({"b", "a", "é", 10, 9, None}) == '{"$":"set","v":["\\u00e9","a","b",10,9,null]}'


# How it reads


@pytest.mark.parametrize(
    ("args", "kwargs", "text"),
    [
        ((), {}, "{}"),
        ((7,), {}, '{"args":[7]}'),
        ((), {"x": 1, "a": None}, '{"kwargs":{"a":null,"x":1}}'),
        ((7, "é"), {"x": [1.5, True]}, '{"args":[7,"\\u00e9"],"kwargs":{"x":[1.5,true]}}'),
    ],
)
def test_a_call_reads_like_json(args, kwargs, text):
    assert dump_call(args, kwargs) == text
    assert load_call(text) == (list(args), kwargs)


@pytest.mark.parametrize(
    ("value", "tag", "form"),
    [
        (UUID(int=7), "uuid", "00000000-0000-0000-0000-000000000007"),
        (datetime(2013, 1, 1, 9, tzinfo=UTC), "datetime", "2013-01-01T09:00:00+00:00"),
        (datetime(2013, 1, 1, 9, tzinfo=NEW_YORK), "datetime", "2013-01-01T09:00:00-05:00[America/New_York]"),
        (datetime.fromisoformat("2013-11-03T01:00").replace(fold=1), "datetime", "2013-11-03T01:00:00[_fold=1]"),
        (date(2013, 1, 1), "date", "2013-01-01"),
        (time(9, 30, tzinfo=NEW_YORK), "time", "09:30:00[America/New_York]"),
        (timedelta(days=-1, microseconds=3), "timedelta", [-1, 0, 3]),
        (Decimal("1.10"), "decimal", "1.10"),
        (b"\x00\xff", "bytes", "AP8="),
        ((1, 2), "tuple", [1, 2]),
        ({2, 1}, "set", [1, 2]),
        (frozenset("b"), "frozenset", ["b"]),
        ({2: "b", 1: "a"}, "dict", [[1, "a"], [2, "b"]]),
        ({"$": 1}, "dict", [["$", 1]]),
        (Flight.Status.DELAYED, "enum", [f"{__name__}:Flight.Status", "DELAYED"]),
        (Access.READ | Access.WRITE, "enum", [f"{__name__}:Access", 3]),
        (nan, "float", "nan"),
        (-inf, "float", "-inf"),
        ("\ud83d\ude00", "str", ["\ud83d", "\ude00"]),
        (-(1 << 2048), "int", "-0x1" + 512 * "0"),
    ],
)
def test_what_json_has_no_word_for_is_tagged(value, tag, form):
    assert json.loads(dumps(value)) == {"$": tag, "v": form}


@pytest.mark.parametrize(
    ("value", "plain"), [(1 << 2047, str(1 << 2047)), ("😀", '"\\ud83d\\ude00"'), ("$", '"$"'), (-0.0, "-0.0")]
)
def test_what_json_has_a_word_for_is_not_tagged(value, plain):
    assert dumps(value) == plain
    assert exactly(loads(plain)) == exactly(value)


def test_huge_ints_come_back_under_the_strictest_limit_of_digits():
    before = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(sys.int_info.str_digits_check_threshold)
    try:
        for number in ((1 << 2048) - 1, 1 << 2048, -(1 << 50_000)):
            assert loads(dumps(number)) == number
            assert load_call(dump_call((number,), {})) == ([number], {})
    finally:
        sys.set_int_max_str_digits(before)


# The fast path

ATOMS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    TEXTS,
    st.sampled_from([1 << 2048, 10**700, 10**5000, "x" * 700]),
)


@QUICK
@given(st.lists(ATOMS, max_size=4).map(tuple), st.dictionaries(TEXTS, ATOMS, max_size=4))
def test_the_fast_path_writes_what_the_long_way_would(args, kwargs):
    assert dump_call(args, kwargs) == serialization._to_json(serialization._encode_call(args, kwargs, ()))
    for value in args:
        assert dumps(value) == serialization._to_json(serialization._encode(value, 0))


def test_plain_text_is_read_without_looking_for_tags(monkeypatch):
    monkeypatch.setattr(serialization, "_from_tagged_json", None)
    assert load_call('{"args":["$7",{"a":1}]}') == (["$7", {"a": 1}], {})


# Subclasses


class Text(str):
    __slots__ = ()


class Number(int):
    pass


class Share(float):
    pass


class Moment(datetime):
    """As under freezegun."""


class Day(date):
    pass


class Nanosecond(datetime):
    """As pandas' Timestamp: the plain fields do not say all."""

    def __eq__(self, other):
        return False

    __hash__ = datetime.__hash__


class NotATime(datetime):
    """As pandas' NaT."""

    def isoformat(self):
        return "NaT"


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (Text("<b>"), "<b>"),
        (Number(7), 7),
        (Share(0.5), 0.5),
        (Share(nan), nan),
        (Moment(2013, 11, 3, 1, 30, tzinfo=NEW_YORK, fold=1), datetime(2013, 11, 3, 1, 30, tzinfo=NEW_YORK, fold=1)),
        (Day(2013, 1, 1), date(2013, 1, 1)),
        (defaultdict(list, b=[1], a=[]), {"a": [], "b": [1]}),
        (Counter("aab"), {"a": 2, "b": 1}),
    ],
)
def test_a_subclass_without_a_mind_of_its_own_comes_back_plain(value, plain):
    assert exactly(loads(dumps(value))) == exactly(plain)
    assert dumps(value) == dumps(plain)


def test_an_ordered_dict_keeps_its_order():
    value = OrderedDict(b=1, a=2)
    assert list(loads(dumps(value)).items()) == [("b", 1), ("a", 2)]
    assert dumps(value) != dumps(OrderedDict(a=2, b=1))


class Rows(list):
    pass


class Form(dict):
    """As Django's QueryDict: its items are not what its keys lead to."""


@pytest.mark.parametrize(
    "value",
    [
        Point(1, 2),
        Rows(),
        Form(),
        Nanosecond(2013, 1, 1),
        NotATime(2013, 1, 1),
        bytearray(b"x"),
        range(3),
        ...,
        object,
        len,
    ],
)
def test_other_types_are_refused_by_name(value):
    with pytest.raises(NotStorable, match=f"^value: <{type(value).__name__}> can't be stored"):
        dumps(value)
