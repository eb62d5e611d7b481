"""The decoder of payloads takes any text: it gives back values of a closed list of types, or one of its two errors."""

from __future__ import annotations

import enum
import json
import sys
from contextlib import suppress
from datetime import date, time, timedelta
from decimal import Decimal
from uuid import UUID

from django.db.models import Model
from hypothesis import example, given
from hypothesis import strategies as st

from delayedq.core.serialization import _DECODERS, dumps, load_call, loads
from delayedq.exceptions import ArgumentsMismatch, NotStorable, ReferenceGone
from tests.fuzz.effort import texts, tried

#: Nothing else comes from a payload; a datetime is a date, and a bool an int.
TYPES = (
    int, float, str, bytes, list, dict, tuple, set, frozenset, date, time, timedelta, UUID, Decimal, enum.Enum, Model,
    type(None),
)  # fmt: skip


class Access(enum.Flag):
    READ = 1
    WRITE = 2


tags = st.sampled_from([*_DECODERS, "pickle", "object", "__reduce__", "call"]) | texts
paths = st.sampled_from([
    f"{__name__}:Access", "os:system", "builtins:eval", "sys:modules", "enum:Flag", "re:RegexFlag", "http:HTTPStatus",
    "delayedq.models:Message", "uuid:SafeUUID", "subprocess:Popen", "signal:Signals", "ssl:Options", ":", "enum:",
])  # fmt: skip
atoms = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([-1, 2**63, 10**400])
    | st.floats()
    | texts
    | paths
    | st.sampled_from(["2026-01-01T00:00:00Z", "2026-01-01T00:00:00+00:00[UTC]", "12:00[Europe/London]", "0x1", "AA=="])
)
values = st.recursive(
    atoms,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(texts, inner, max_size=3)
        | st.builds(lambda tag, form: {"$": tag, "v": form}, tags, inner)
        | st.builds(lambda path, name: {"$": "enum", "v": [path, name]}, paths, inner)
        | st.builds(lambda label, pk: {"$": "model", "v": {"model": label, "pk": pk}}, texts, inner)
        | st.builds(lambda tag, form: {"$": tag, "v": [form]}, tags, inner)
    ),
    max_leaves=12,
)


@st.composite
def mutated(draw, documents):
    """A JSON text, with a part of it cut out, written twice, or replaced."""
    text = json.dumps(draw(documents))
    start, end = sorted(draw(st.tuples(*[st.integers(0, len(text))] * 2)))
    between = draw(st.sampled_from(["", text[start:end] * 2, "[", '{"$":', "\x00", "9" * 5_000, "\ud800"]) | texts)
    return text[:start] + between + text[end:]


def parts(value):
    """A value and all inside of it, which may be thousands of levels."""
    left = [value]
    while left:
        yield (one := left.pop())
        if isinstance(one, dict):
            left += [*one, *one.values()]
        elif isinstance(one, list | tuple | set | frozenset):
            left += one


def read(text):
    """What a text means, or nothing."""
    for reader in (loads, load_call):
        with suppress(ArgumentsMismatch, ReferenceGone):
            yield from parts(reader(text))


@tried(300)
@example('{"args":[{"$":"int","v":"' + "f" * 100_000 + '"}]}')
@example('{"$":"tuple","v":[' * 3_000 + "]}" * 3_000)
@example('{"$":"set","v":[{"$":"decimal","v":"1E999999999"},{"$":"decimal","v":"sNaN"}]}')
@example('{"$":"datetime","v":"2026-01-01[' + "a/" * 5_000 + ']"}')
@given(mutated(values) | values.map(json.dumps))
def test_a_payload_is_read_or_refused(db, text):
    before = {name for name in sys.modules if not name.startswith("tzdata")}

    found = list(read(text))

    assert [one for one in found if not isinstance(one, TYPES)] == []
    assert {name for name in sys.modules if not name.startswith("tzdata")} == before


@tried(200)
@given(values.map(json.dumps))
def test_what_was_read_can_be_stored_and_read_again_or_is_refused(db, text):
    """Also what nobody would store: sets of NaN, dicts with odd keys, hundreds of levels."""
    with suppress(ArgumentsMismatch, ReferenceGone, NotStorable):
        stored = dumps(loads(text))
        assert dumps(loads(stored)) == stored
