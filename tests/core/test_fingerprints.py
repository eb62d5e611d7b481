"""The line of an error, and what lines of alike errors share."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from delayedq.core.errors import LINE_LENGTH, as_hex, class_of, fingerprint, from_hex, last_error, pattern

PATTERNS = {
    "E: Seat 12 of UA1545 isn't free": "E: Seat <n> of UA<n> isn't free",
    "E: 1,000.5 is not -5.2e-3": "E: <n> is not <n>",
    "KeyError: 'UA1545'": "KeyError: <value>",
    "E: don't use 'a' and 'b's c'": "E: don't use <value> and <value>",
    'E: column "a b" and `c` and “d” and «e»': "E: column <value> and <value> and <value> and <value>",
    r"E: 'it\'s' here": "E: <value> here",
    "E: an 'open quote": "E: an 'open quote",
    "E: <Flight object at 0x7f3a1c>": "E: <Flight object at <hex>>",
    "E: commit 9f86d081884c7d65 of deadbeef": "E: commit <hex> of deadbeef",
    "E: 550e8400-e29b-41d4-a716-446655440000 gone": "E: <uuid> gone",
    "E: no answer of 10.0.0.7:5432 nor fe80:0:0:1::2": "E: no answer of <address> nor <address>",
    "E: ann@example.org is away": "E: <email> is away",
    "E: after 2026-11-22T03:00:00+01:00": "E: after <time>",
    "app.v2.Overbooked": "app.v2.Overbooked",
    "": "",
}


@pytest.mark.parametrize(("error", "expected"), PATTERNS.items())
def test_what_differs_between_alike_errors_is_left_out(error, expected):
    assert pattern(error) == expected


@settings(deadline=None)
@given(st.integers(), st.integers())
def test_errors_that_differ_in_a_number_are_alike(one, other):
    assert fingerprint(f"E: flight {abs(one)} is full") == fingerprint(f"E: flight {abs(other)} is full")


def test_errors_of_another_class_or_text_differ():
    lines = {"A: x is full", "B: x is full", "A: x is empty", "A", ""}
    assert len({fingerprint(line) for line in lines}) == len(lines)


def test_a_fingerprint_stays_the_same_from_version_to_version():
    """It is stored: another one would tear groups apart."""
    assert as_hex(fingerprint("ValueError: Seat 12 is taken")) == "328ef70d9c406a7b"


@settings(deadline=None)
@given(st.integers(-(2**63), 2**63 - 1))
def test_a_fingerprint_is_read_back_from_its_digits(number):
    assert len(as_hex(number)) == 16
    assert from_hex(as_hex(number)) == number


def errors(*records):
    return json.dumps([{"attempt": 1, "exception": name, "message": said} for name, said in records])


@pytest.mark.parametrize(
    ("stored", "line"),
    [
        (
            errors(("builtins.ValueError", "first"), ("app.Full", "Seat 1 is taken\nDETAIL: long")),
            "app.Full: Seat 1 is taken",
        ),
        (errors(("builtins.KeyError", "'a'")), "KeyError: 'a'"),
        (errors(("app.Full", "")), "app.Full"),
        (errors(("app.Full", "a\x00b\udcffc\u202ed")), "app.Full: a b c d"),
        (errors(("app.Full", "x" * 999)), f"app.Full: {'x' * (LINE_LENGTH - 10)}"),
        (None, ""),
        ("[", ""),
        ("{}", ""),
        ('[{"attempt": 1}]', ""),
    ],
)
def test_the_line_of_what_is_stored(stored, line):
    assert last_error(stored) == (line, fingerprint(line))


@settings(deadline=None)
@given(st.text())
def test_any_stored_text_has_a_line_that_any_database_stores(text):
    error, number = last_error(errors(("app.E", text)))
    assert error.isprintable()
    assert len(error) <= LINE_LENGTH
    assert -(2**63) <= number < 2**63
    assert last_error(text) is not None


def test_the_class_in_a_line():
    assert [class_of(line) for line in ("app.Full: a: b", "app.Full", "")] == ["app.Full", "app.Full", ""]
