"""Commands speak the language of the project, as its admin does; the words for programs stay as they are."""

from __future__ import annotations

import json
from contextlib import suppress
from io import StringIO

import pytest
from django.core.management import CommandError, call_command
from django.utils import translation

from tests.admin.given import offer
from tests.app import tasks

pytestmark = pytest.mark.parametrize("alias", ["sqlite"], indirect=True)


@pytest.fixture(autouse=True)
def in_german():
    with translation.override("de"):
        yield


def said(*arguments):
    out = StringIO()
    with suppress(SystemExit):
        call_command("delayedq", *arguments, stdout=out)
    return out.getvalue()


SAID = {
    "doctor": "Alles ist in Ordnung.",
    "check-pending": "Diese Version kann alle 0 Nachrichten ausführen, die warten.",
    "health --oldest-due 60s": "ok: Keine Nachricht ist länger als 1 min fällig.",
    "pause --all": "Angehalten: ",
    "resume --all": "Fortgesetzt: nichts.",
    "pause --task tests.app.tasks.echo": "tests.app.tasks.echo ist angehalten.",
    "prune --older-than 7d --dry-run": "0 beendete Nachrichten von vor ",
    "cron list": "Es gibt keine Zeitpläne, weder in DELAYEDQ['CRON'] noch in der Datenbank.",
    "channels list": "Kein Kanal hat Nachrichten.",
}


@pytest.mark.parametrize("line", SAID)
def test_what_a_command_says_is_translated(store, line):
    assert SAID[line] in said(*line.split())


def test_what_is_wrong_and_its_cure_are_translated_and_the_condition_is_not(store):
    offer(store, "a", kind="gone.task", seconds=3_600)
    text, found = said("doctor"), json.loads(said("doctor", "--json"))

    assert "Mindestens 1 wartende Nachricht ist von gone.task, einem Task, der hier unbekannt ist." in text
    assert "Abhilfe: Nehmen Sie " in text
    assert found[0]["condition"] == "unknown task"


def test_the_table_of_schedules_is_translated(store, settings):
    settings.DELAYEDQ = {"CRON": {"nightly": {"task": tasks.nothing.module_path, "cron": "0 3 * * *"}}}
    titles, *_ = said("cron", "list").splitlines()

    assert titles.split()[:3] == ["Zeitplan", "Task", "wann"]


def test_errors_are_translated(store):
    with pytest.raises(CommandError, match=r"Es gibt keinen Task 'no.such'\."):
        said("pause", "--task", "no.such")
