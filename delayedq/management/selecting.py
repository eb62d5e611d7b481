"""The messages that a command is about: those that are named, or the filters of the admin as options."""

from __future__ import annotations

import re
from argparse import ArgumentTypeError
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from django.core.exceptions import ValidationError
from django.core.management.base import CommandError
from django.forms.utils import from_current_timezone
from django.utils import timezone
from django.utils.translation import gettext as _

from delayedq.core.bounds import EARLIEST, KEY_LENGTH, is_storable
from delayedq.core.edits import LATEST, later
from delayedq.management.arguments import age
from delayedq.management.queues import known_queues, near
from delayedq.models import Outcome
from delayedq.operations.browsing import EndedSelection, Selection, find_live, id_in, position_in
from delayedq.operations.group_names import fingerprint_of
from delayedq.operations.wording import printable
from delayedq.sql.states import MessageState
from delayedq.store import operator_store
from delayedq.store.protocol import BARE
from delayedq.tasks import registered

if TYPE_CHECKING:
    from argparse import ArgumentParser
    from collections.abc import Sequence

    from delayedq.backend import DelayedQBackend
    from delayedq.models import Message
    from delayedq.store.base import Store
    from delayedq.store.operator import Position

LIVE_STATES = tuple(state.value for state in MessageState)
OUTCOMES = tuple(outcome.value for outcome in Outcome)
#: All ended messages, whatever their outcome.
ENDED = "ended"
#: The options of `add_filters` that choose messages.
LIVE_FILTERS = ("queue", "task", "state", "key", "search", "priority", "worker", "since", "until")
DEAD_FILTERS = ("queue", "task", "key", "search", "error", "group", "priority", "worker", "since", "until")


def add_filters(parser: ArgumentParser, names: Sequence[str], states: Sequence[str] = LIVE_STATES) -> None:
    """The options with these names, of LIVE_FILTERS or DEAD_FILTERS; `states`: the choices of --state."""
    keys = parser.add_mutually_exclusive_group()
    when = "ISO 8601 in the current time zone or with an offset; 2h: two hours ago; +2h: in two hours."
    options: dict[str, dict[str, Any]] = {
        "queue": {"type": storable, "metavar": "NAME", "help": "Only of this queue."},
        "task": {"type": storable, "metavar": "PATH", "help": "Only of this task, or kind of a bare queue."},
        "state": {"choices": states, "help": "Only in this state."},
        "key": {"type": key, "metavar": "PREFIX", "help": "Only those whose key begins so."},
        "search": {
            "type": key,
            "metavar": "TEXT",
            "help": "As the search of the admin: an id, or how a key begins; for `list` args.NAME:VALUE, too.",
        },
        "error": {"type": storable, "metavar": "TEXT", "help": "Only dead letters with this in their error."},
        "group": {"type": group, "metavar": "NAME", "help": "Only dead letters of this error group."},
        "priority": {"type": priority, "metavar": "N", "help": "Only of this priority."},
        "worker": {"type": storable, "metavar": "NAME", "help": "Only what this worker holds, or held last."},
        "since": {"type": moment, "metavar": "TIME", "help": f"Due, or ended, from then on. {when}"},
        "until": {"type": moment, "metavar": "TIME", "help": "Due, or ended, until then."},
    }
    for name in names:
        (keys if name in {"key", "search"} else parser).add_argument(f"--{name}", **options[name])


# Types of arguments


def storable(text: str) -> str:
    """A text that a database can store. Raises ArgumentTypeError."""
    if not text or not is_storable(text):
        raise ArgumentTypeError("this is empty, or no text that a database can store")
    return text


def key(text: str) -> str:
    """A key, or how it begins. Raises ArgumentTypeError."""
    if len(text) > KEY_LENGTH:
        raise ArgumentTypeError(f"a key has at most {KEY_LENGTH} characters")
    return storable(text)


def position(text: str) -> Position:
    """Where a list goes on, as `list` says it. Raises ArgumentTypeError."""
    if (found := position_in(text)) is None:
        raise ArgumentTypeError(f"{text!r} is no place where a list goes on: `list` says it as it stops")
    return found


def priority(text: str) -> int:
    """What a database can store as one. Raises ArgumentTypeError."""
    if not re.fullmatch("-?[0-9]{1,5}", text) or not -(2**15) <= int(text) < 2**15:
        raise ArgumentTypeError(f"{text!r} is no priority")
    return int(text)


def group(text: str) -> int:
    """The fingerprint of an error group, by its name in the address of an admin page. Raises ArgumentTypeError."""
    if not re.fullmatch("[0-9a-f]{16}", text):
        raise ArgumentTypeError(f"{text!r} is no error group: `list --state failed --json` and the admin name them")
    return fingerprint_of(text)


def moment(text: str) -> datetime | timedelta:
    """A time, or (2h, +2h) its distance from now. Raises ArgumentTypeError."""
    if re.fullmatch(r"\+?[0-9.]+[smhdw]", text):
        distance = age(text.removeprefix("+"))
        return distance if text.startswith("+") else -distance
    try:
        given = datetime.fromisoformat(text)
        aware = given if timezone.is_aware(given) else from_current_timezone(given)
        if EARLIEST <= aware <= LATEST:
            return aware
    except ValidationError:
        raise ArgumentTypeError(f"{text!r} comes twice, or never, in the current time zone: add an offset") from None
    except (ValueError, OverflowError):
        pass
    raise ArgumentTypeError(f"{text!r} is no time: write 2026-11-22T03:00, an offset behind it if you like, or 2h, +2h")


def ahead(text: str) -> datetime | timedelta:
    """The same for a time to come: a distance has its sign, so that nobody means the future and says the past."""
    given = moment(text)
    if isinstance(given, timedelta) and not text.startswith("+"):
        raise ArgumentTypeError(f"write +{text}: in that time from now")
    return given


def at(given: datetime | timedelta, now: datetime) -> datetime:
    """The time that `moment` has read."""
    return later(now, given) if isinstance(given, timedelta) else given


# Selections


def is_filtered(options: dict[str, Any], names: Sequence[str]) -> bool:
    return any(options[name] is not None for name in names)


def live_selection(options: dict[str, Any], now: datetime) -> Selection:
    state = options.get("state")
    return Selection(as_of=now, state=MessageState(state) if state else None, **_asked(options, now))


def ended_selection(options: dict[str, Any], now: datetime) -> EndedSelection:
    """`state` is an outcome here; an error or a group is one of dead letters."""
    state, error, fingerprint = (options.get(name) for name in ("state", "error", "group"))
    outcome = state if state in OUTCOMES else None
    if (error, fingerprint) != (None, None) and state in {None, ENDED}:
        outcome = Outcome.FAILED.value
    return EndedSelection(outcome=outcome, error=error, fingerprint=fingerprint, **_asked(options, now))


def _asked(options: dict[str, Any], now: datetime) -> dict[str, Any]:
    """What live and ended messages are both asked for."""
    until = options["until"] and at(options["until"], now)
    if until and not until.microsecond:
        until = until.replace(microsecond=999_999)  # all of its second, as in the admin
    return {
        "queue": options["queue"],
        "kind": options["task"],
        "key": options["key"] or options["search"],
        "priority": options["priority"],
        "worker": options["worker"],
        "since": options["since"] and at(options["since"], now),
        "until": until,
    }


def named_live(store: Store, texts: Sequence[str]) -> list[Message]:
    """The live messages with these ids or keys. Raises CommandError for one that is none, or that may be several."""
    found: dict[int, Message] = {}
    for text in texts:
        those = find_live(store, text) if is_storable(text) else []
        if not those:
            raise CommandError(_("There is no live message with the id or key %(text)r.") % {"text": text})
        if len(those) > 1:
            known = ", ".join(f"#{one.pk} {printable(one.kind)}" for one in those)
            said = _("%(text)r may be several messages: %(known)s. Name one by its id.")
            raise CommandError(said % {"text": text, "known": known})
        found[those[0].pk] = those[0]
    return list(found.values())


def ids_of(texts: Sequence[str]) -> list[int]:
    """Raises CommandError for what is no id."""
    ids = [id_in(text) for text in texts]
    for text, id_ in zip(texts, ids, strict=True):
        if id_ is None:
            raise CommandError(_("%(text)r is no id. Find dead letters by key with --key.") % {"text": text})
    return [id_ for id_ in ids if id_ is not None]


def unknown_name(store: Store, backends: Sequence[DelayedQBackend], options: dict[str, Any]) -> str:
    """Where nothing was found: that nobody knows the queue or the task, with a near name; "": it is known."""
    queue, task = options["queue"], options["task"]
    if queue is not None and BARE not in queue:
        known = known_queues([queue], backends)
        if queue not in known:
            return _("No task and no live message has the queue %(name)r") % {"name": queue} + near(queue, known)
    if task is not None and task not in registered:
        kinds = {*registered, *operator_store(store.alias).keyed_kinds()}
        if task not in kinds:
            return _("There is no task %(name)r") % {"name": task} + near(task, kinds)
    return ""
