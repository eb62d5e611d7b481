"""`manage.py delayedq tail`: a line for each message that starts or ends, until Ctrl-C."""

from __future__ import annotations

import json
import signal
import threading
import time
from argparse import ArgumentTypeError
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from django.db import Error, connections
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import pgettext

from delayedq.management.arguments import seconds
from delayedq.management.backends import chosen_store
from delayedq.management.selecting import ENDED, OUTCOMES, add_filters, ended_selection, live_selection
from delayedq.management.telling import add_json, plain
from delayedq.masking import shown
from delayedq.models import FinishedMessage, Message
from delayedq.operations.browsing import PAGE
from delayedq.operations.following import Following
from delayedq.operations.timeline import ran_for
from delayedq.operations.wording import printable

if TYPE_CHECKING:
    from argparse import ArgumentParser
    from collections.abc import Iterator, Sequence

    from django.core.management.base import OutputWrapper

STARTED = "started"
FILTERS = ("queue", "task", "state", "key", "error", "group", "priority", "worker")


def add_tail(parser: ArgumentParser) -> None:
    add_filters(parser, FILTERS, (STARTED, *OUTCOMES, ENDED))
    parser.add_argument("-n", "--last", type=_last, default=10, metavar="N", help="Begin with the last N ends (10).")
    parser.add_argument("--every", type=seconds, default=seconds("1"), metavar="S", help="Look every S seconds (1).")
    add_json(parser, "For programs: an object on each line.")


def _last(text: str) -> int:
    if not text.isdecimal() or int(text) > PAGE:
        raise ArgumentTypeError(f"{text!r} is not a number from 0 to {PAGE}")
    return int(text)


def run_tail(out: OutputWrapper, err: OutputWrapper, options: dict[str, Any]) -> None:
    """Returns on Ctrl-C."""
    store, _backends = chosen_store(options["backend"])
    with _until_interrupted() as interrupted:
        now, given = store.now(), {"search": None, "since": None, "until": None, **options}
        following = Following(store, ended_selection(given, now), live_selection({**given, "state": None}, now))
        if options["state"] != STARTED:
            _write(out, options, following.last(options["last"]))
        while not interrupted.is_set():
            time.sleep(options["every"].total_seconds())
            try:
                _write(out, options, [*_found(following, options)])
            except Error as error:
                connections[store.alias].close()
                if not interrupted.is_set():
                    err.write(_("The database does not answer: %(error)s") % {"error": printable(str(error).strip())})


@contextmanager
def _until_interrupted() -> Iterator[threading.Event]:
    """Ends on Ctrl-C. The event is set then, for where nobody sees the exception: SQLite turns what is raised in a
    function of Django's into an error of the database, and Python drops what is raised as an object is freed.
    """
    interrupted, before = threading.Event(), signal.getsignal(signal.SIGINT)

    def interrupt(*_: object) -> None:
        interrupted.set()
        raise KeyboardInterrupt

    is_main = threading.current_thread() is threading.main_thread()
    try:
        if is_main:
            signal.signal(signal.SIGINT, interrupt)
        yield interrupted
    except KeyboardInterrupt:
        return
    finally:
        if is_main:
            signal.signal(signal.SIGINT, before)


def _found(following: Following, options: dict[str, Any]) -> Iterator[Message | FinishedMessage]:
    """Of an error or an outcome, there are only ends."""
    if options["state"] in {None, STARTED} and (options["error"], options["group"]) == (None, None):
        yield from following.starts()
    if options["state"] != STARTED:
        yield from following.ends()


def _write(out: OutputWrapper, options: dict[str, Any], messages: Sequence[Message | FinishedMessage]) -> None:
    for message in messages:
        event = _event(shown(message))
        out.write(json.dumps(event, default=plain) if options["json"] else _line(event))
    out.flush()


def _event(message: Message | FinishedMessage) -> dict[str, Any]:
    names = ("id", "queue", "kind", "key", "priority", "scheduled_at")
    about: dict[str, Any] = {name: getattr(message, name) for name in names}
    if isinstance(message, Message):
        about |= {"attempt": message.attempt, "worker": message.leased_by, "remark": ""}
        return {"event": STARTED, "at": message.claimed_at, **about}
    about |= {"attempt": message.attempts, "worker": message.worker, "remark": ran_for(message)}
    about |= {"started_at": message.started_at, "error": message.error}
    return {"event": message.outcome, "at": message.finished_at, **about}


def _line(event: dict[str, Any]) -> str:
    """Such as "03:12:04 failed     #4711 flights.tasks.remind UA1545, its last attempt ran 2 s: KeyError: 'gate'"."""
    at = "" if event["at"] is None else f"{timezone.localtime(event['at']):%H:%M:%S}"
    word = _("started") if event["event"] == STARTED else pgettext("state", event["event"])
    name = f"#{event['id']} {event['kind']} {event['key'] or ''}".strip()
    remark = event["remark"] or _("on %(worker)s") % {"worker": event["worker"]}
    error = f": {event['error']}" if event.get("error") else ""
    return printable(f"{at} {word:10} {name}, {remark}{error}")
