"""The log lines and the processor time of failed attempts on the page of a message, and in the shell."""

from __future__ import annotations

import io
import json
from datetime import timedelta

import pytest
from django.core.management import call_command

from tests.admin.given import HISTORY, dead, text_of

LINES = ["+0.250 INFO shop.mail: <b>\u202eto Ada", "+1.000 ERROR shop.mail: no fuel"]


@pytest.fixture
def letter(store):
    """A dead letter whose attempt ran for two seconds, and computed for a half."""
    record = {"attempt": 1, "failed_at": (store.now() - timedelta(seconds=1)).isoformat(), "seconds": 2.0}
    record |= {"worker": "w", "exception": "app.NoFuel", "message": "empty", "traceback": "", "log": LINES}
    return dead(store, "UA1545", errors=json.dumps([record | {"processor_seconds": 0.5}]), kind="tests.remind")


def test_a_dead_letter_shows_the_last_lines_and_the_processor_time_of_its_attempts(operator, letter):
    page = operator.get(f"{HISTORY}{letter}/change/")
    text = text_of(page)
    assert "Last log lines +0.250 INFO shop.mail: <b>\\u202eto Ada +1.000 ERROR shop.mail: no fuel" in text
    assert "2 s, 500 ms of processor time" in text
    assert "\u202e" not in page.content.decode()
    assert "<b>\\u202e" not in page.content.decode()


def test_who_may_not_see_payloads_sees_no_line(member, letter):
    text = text_of(member().get(f"{HISTORY}{letter}/change/"))
    assert "app.NoFuel" in text
    assert "shop.mail" not in text
    assert "500 ms of processor time" in text


def test_the_shell_shows_the_lines_after_the_error(letter):
    out = io.StringIO()
    call_command("delayedq", "show", str(letter), stdout=out)
    assert "  +1.000 ERROR shop.mail: no fuel\n" in out.getvalue()


@pytest.mark.parametrize("log", ["x", {"a": 1}, [None, 7]])
def test_what_other_code_has_recorded_breaks_no_page(operator, store, log):
    record = {"attempt": 1, "failed_at": store.now().isoformat(), "seconds": 2.0, "log": log, "processor_seconds": "x"}
    letter = dead(store, "UA1545", errors=json.dumps([record]))
    assert operator.get(f"{HISTORY}{letter}/change/").status_code == 200
