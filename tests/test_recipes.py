"""docs/operate/recipes.md: its code, as it stands there, with real tasks, requests and Sentry's SDK."""

from __future__ import annotations

import io
import json
import logging
import logging.config
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
import sentry_sdk
from django.http import HttpResponse
from django.test import RequestFactory
from django.utils.module_loading import import_string
from sentry_sdk.integrations.logging import LoggingIntegration
from sentry_sdk.transport import Transport

from delayedq import current_message
from delayedq.models import Message
from delayedq.testing import run_due
from tests.app import tasks

GUIDE = (Path(__file__).parents[1] / "docs" / "operate" / "recipes.md").read_text()
LOGS, LOGGING, REQUESTS, OF_REQUESTS, SENTRY, OF_SENTRY = re.findall(
    r"^```python\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL
)


def module(code, name="recipe"):
    made = ModuleType(name)
    exec(code, made.__dict__)
    return made


@pytest.fixture
def project(monkeypatch):
    """Makes a module of the reader's project, which settings name, from the code of a recipe."""
    whole = ModuleType("project")
    monkeypatch.setitem(sys.modules, "project", whole)

    def made(name, code):
        one = module(code, f"project.{name}")
        monkeypatch.setitem(sys.modules, one.__name__, one)
        setattr(whole, name, one)  # as an import does
        return one

    return made


@pytest.fixture
def lines(project):
    """What the recipe's handler writes, as objects."""
    project("logs", LOGS)
    found = module(LOGGING).LOGGING
    stream, logger = io.StringIO(), logging.getLogger()
    before = logger.handlers[:], logger.level
    found["handlers"]["console"]["stream"] = stream
    logging.config.dictConfig(found)
    yield lambda: [json.loads(line) for line in stream.getvalue().splitlines()]
    logger.handlers[:], _ = before
    logger.setLevel(before[1])


def say():
    logging.getLogger("shop").info("within %s", current_message().id)


async def asay():
    logging.getLogger("shop").info("within %s", current_message().id)


@pytest.mark.parametrize("make", [tasks.play, tasks.aplay, tasks.play_once], ids=["sync", "async", "exactly once"])
def test_each_record_of_a_task_names_its_message(store, lines, make, monkeypatch):
    monkeypatch.setitem(tasks.bodies, "say", asay if make is tasks.aplay else say)
    make.schedule_at(store.now(), "say", key="a")
    id_ = Message.objects.get().pk
    run_due()
    logging.getLogger("shop").info("outside")
    within, outside = [line for line in lines() if line["logger"] == "shop"]

    names = {"message_id": id_, "task": make.module_path, "key": "a", "attempt": 1}
    assert within == within | names | {"text": f"within {id_}", "level": "INFO"}
    assert outside.keys() == {"time", "level", "logger", "text"}


def test_errors_are_in_one_line(store, lines):
    tasks.fail.using(max_attempts=1).enqueue("broken")
    run_due(raise_failures=False)
    (line,) = [line for line in lines() if line["logger"] == "delayedq"]

    assert "ValueError: broken" in line["error"]
    assert line["message_id"]


def test_the_id_of_a_request_is_in_what_its_tasks_log_and_enqueue(store, lines, project, settings, monkeypatch):
    recipe, asked = project("requests", REQUESTS), module(OF_REQUESTS)
    settings.DELAYEDQ = asked.DELAYEDQ
    monkeypatch.setitem(tasks.bodies, "say", say)
    monkeypatch.setitem(tasks.bodies, "pass it on", lambda: tasks.play.enqueue("say").id and None)

    def site(request):
        tasks.play.enqueue("pass it on")
        return HttpResponse()

    middleware, *others = asked.MIDDLEWARE
    assert others == [...]
    import_string(middleware)(site)(RequestFactory().get("/", headers={"X-Request-ID": "r-17"}))
    run_due()
    (line,) = [line for line in lines() if line["logger"] == "shop"]

    assert line["request_id"] == "r-17"
    assert recipe.request_id.get() is None


class Kept(Transport):
    """Sends nothing."""

    def __init__(self):
        super().__init__()
        self.events = []

    def capture_envelope(self, envelope):
        self.events += [event for item in envelope.items if (event := item.get_event())]


def test_sentry_gets_each_error_once_with_its_message(store, project, settings, monkeypatch):
    kept = Kept()
    project("reports", SENTRY)
    monkeypatch.setattr(logging.Logger, "callHandlers", logging.Logger.callHandlers)  # its SDK replaces it for good
    sentry_sdk.init(
        dsn="http://key@localhost/1", transport=kept, default_integrations=False, integrations=[LoggingIntegration()]
    )
    settings.DELAYEDQ = module(OF_SENTRY).DELAYEDQ
    try:
        tasks.fail.using(max_attempts=1).enqueue("broken")
        tasks.echo.enqueue("fine")
        id_ = Message.objects.get(kind=tasks.fail.module_path).pk
        run_due(raise_failures=False)
    finally:
        sentry_sdk.init()
    (event,) = kept.events

    assert event["exception"]["values"][-1]["value"] == "broken"
    assert event["tags"]["message_id"] == id_
    assert event["transaction"] == tasks.fail.module_path
