"""What can't be stored, and what can't be read."""

from __future__ import annotations

import json
import socket
from collections import OrderedDict
from contextlib import suppress
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from delayedq.core import serialization
from delayedq.core.serialization import dump_call, dumps, load_call, loads
from delayedq.exceptions import ArgumentsMismatch, NotStorable, ReferenceGone

# What is wrong, and where


def refusal(*args, names=(), **kwargs):
    with pytest.raises(NotStorable) as refused:
        dump_call(args, kwargs, names)
    return str(refused.value)


@pytest.fixture
def plug():
    with socket.socket() as opened:
        yield opened


def test_a_refusal_names_the_argument(plug):
    reason = ": <socket> can't be stored; pass its plain value, or what identifies it."
    assert refusal(1, plug, names=["when", "flight"]) == "argument 'flight'" + reason
    assert refusal(1, 2, plug, names=["when", "flight"]) == "positional argument 3" + reason
    assert refusal(flight=plug) == "argument 'flight'" + reason


def test_a_refusal_names_the_place_inside_the_argument(plug):
    assert refusal(data={"rows": [1, 2, 3, plug]}).startswith("argument 'data'['rows'][3]: <socket>")
    assert refusal(data=({7: plug},)).startswith("argument 'data'[0][7]: <socket>")
    assert refusal(data=[{1, plug}]).startswith("argument 'data'[0]: <socket>")
    assert refusal(data=[{plug: 1}]).startswith("argument 'data'[0].keys(): <socket>")
    assert refusal(data=OrderedDict({"a": {(plug,): 1}})).startswith("argument 'data'['a'].keys()[0]: <socket>")


def test_a_refusal_can_name_something_else_than_a_value(plug):
    with pytest.raises(NotStorable, match=r"^the result\[0\]: <socket>"):
        dumps([plug], where="the result")


def test_a_structure_that_contains_itself_is_refused():
    rows = [1]
    rows.append({"all": (rows,)})
    assert refusal(data={"rows": rows}) == (
        "argument 'data'['rows'][1]['all'][0]: <list> can't be stored, for it contains itself."
    )
    loop = {}
    loop["loop"] = loop
    assert refusal(loop) == "positional argument 1['loop']: <dict> can't be stored, for it contains itself."


def nested(levels, wrap):
    value = 7
    for _ in range(levels):
        value = wrap(value)
    return value


WRAPS = [lambda inner: [inner], lambda inner: (inner,), lambda inner: {"a": inner}, lambda inner: {7: inner}]


@pytest.mark.parametrize("wrap", WRAPS, ids=["list", "tuple", "dict", "pairs"])
def test_a_structure_comes_back_from_a_hundred_levels_but_no_more(wrap):
    assert loads(dumps(nested(100, wrap))) == nested(100, wrap)
    with pytest.raises(NotStorable, match="can't be stored, for it sits inside 100 others"):
        dumps(nested(101, wrap))


def test_keys_count_as_levels_too():
    assert loads(dumps({nested(99, WRAPS[1]): 1})) == {nested(99, WRAPS[1]): 1}
    with pytest.raises(NotStorable, match="sits inside 100 others"):
        dumps({nested(100, WRAPS[1]): 1})


# Texts that delayedq did not write


def tagged(tag, form):
    return json.dumps({"$": tag, "v": form})


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "not readable JSON"),
        ("{", "not readable JSON"),
        ('{"$"', "not readable JSON"),
        ("9" * 5000, "not readable JSON"),
        ("[" * 100_000, "not readable JSON"),
        ('["$",' * 100_000, "not readable JSON"),
        (tagged("pickle", "gASVAAA="), "unknown tag: 'pickle'"),
        (tagged(["uuid"], 1), "malformed tag"),
        ('{"$":"uuid"}', "malformed tag"),
        ('{"$":"uuid","v":"","w":1}', "malformed tag"),
        (tagged("uuid", "7"), "malformed uuid, '7': badly formed"),
        (tagged("uuid", 7), "malformed uuid, 7: not a str"),
        (tagged("decimal", "x"), "malformed decimal"),
        (tagged("datetime", "yesterday"), "malformed datetime"),
        (tagged("datetime", "2013-01-01T00:00:00[Mars/Base]"), "malformed datetime"),
        (tagged("datetime", "2013-01-01T00:00:00[America]"), "malformed datetime"),
        (tagged("datetime", "2013-01-01T00:00:00[../../etc/passwd]"), "malformed datetime"),
        (tagged("datetime", "0001-01-01T00:00:00+23:00[America/New_York]"), "malformed datetime"),
        (tagged("datetime", ""), "malformed datetime"),
        (tagged("time", "25:00"), "malformed time"),
        (tagged("date", "2013-02-30"), "malformed date"),
        (tagged("timedelta", [10**20, 0, 0]), "malformed timedelta"),
        (tagged("timedelta", ["1"]), "malformed timedelta"),
        (tagged("bytes", "?"), "malformed bytes"),
        (tagged("bytes", "é"), "malformed bytes"),
        (tagged("int", "0xg"), "malformed int"),
        (tagged("float", "fast"), "malformed float"),
        (tagged("str", [1]), "malformed str"),
        (tagged("set", [[]]), "malformed set"),
        (tagged("tuple", "abc"), "malformed tuple, 'abc': not a list"),
        (tagged("dict", [[[], 1]]), "malformed dict"),
        (tagged("dict", [1]), "malformed dict"),
    ],
)
def test_a_text_that_cannot_be_read_is_a_mismatch(text, reason):
    with pytest.raises(ArgumentsMismatch, match=reason):
        loads(text)


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "null",
        "7",
        '{"args":{}}',
        '{"args":null}',
        '{"kwargs":[]}',
        '{"arg":[]}',
        '{"kwargs":{"$":"dict","v":[[1,2]]}}',
    ],
)
def test_a_text_that_is_no_call_is_a_mismatch(text):
    with pytest.raises(ArgumentsMismatch, match="The payload"):
        load_call(text)


@settings(max_examples=30, deadline=None)
@given(st.text(max_size=10))
def test_any_text_is_read_or_a_mismatch(text):
    for candidate in (text, tagged("datetime", text), tagged("decimal", text), tagged("enum", [text, text])):
        with suppress(ArgumentsMismatch):
            loads(candidate)


# Further codecs


class Plane:
    def __init__(self, tail):
        self.tail = tail


@pytest.fixture
def register(monkeypatch):
    monkeypatch.setattr(serialization, "_REGISTERED", list(serialization._REGISTERED))
    monkeypatch.setattr(serialization, "_DECODERS", dict(serialization._DECODERS))
    return serialization.register


def test_a_registered_kind_is_stored_as_what_its_codec_makes_of_it(register):
    register(
        "plane",
        lambda value: isinstance(value, Plane),
        lambda plane: {"tail": (plane.tail,)},
        lambda v: Plane(*v["tail"]),
    )
    text = dumps([Plane(UUID(int=7))])
    assert json.loads(text)[0]["$"] == "plane"
    assert loads(text)[0].tail == UUID(int=7)


def test_a_codec_refuses_with_a_reason_that_gets_a_place(register):
    def encode(plane):
        raise NotStorable("it has no tail number")

    register("plane", lambda value: isinstance(value, Plane), encode, Plane)
    assert refusal(data=[Plane("")]) == "argument 'data'[0]: <Plane> can't be stored: it has no tail number."


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (ReferenceGone("gone"), ReferenceGone),
        (ConnectionError("try again"), ConnectionError),
        (KeyError("tail"), ArgumentsMismatch),
        (ValueError("tail"), ArgumentsMismatch),
    ],
)
def test_only_an_unreadable_value_is_a_mismatch(register, raised, expected):
    def decode(value):
        raise raised

    register("plane", lambda value: False, repr, decode)
    with pytest.raises(expected):
        loads(tagged("plane", 7))


@pytest.mark.parametrize("tag", ["uuid", "enum", "dict"])
def test_a_tag_is_registered_once(register, tag):
    with pytest.raises(ValueError, match=f"'{tag}' is taken"):
        register(tag, bool, str, str)
