"""`manage.py delayedq cron`: list, next, run, enable, disable, add and remove schedules."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING, Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandError
from django.utils.dateparse import parse_duration
from django.utils.translation import gettext as _

from delayedq import schedules
from delayedq.cron.definitions import definitions
from delayedq.cron.operator import all_schedules, changes, describe, named_schedule, recorded
from delayedq.exceptions import DelayedQError
from delayedq.management import tables
from delayedq.management.arguments import positive
from delayedq.management.telling import add_by, add_json, as_json, tell, who_and_why
from delayedq.operations.acts import note
from delayedq.store import default_store

if TYPE_CHECKING:
    from argparse import ArgumentParser
    from collections.abc import Callable

    from django.core.management.base import OutputWrapper

    from delayedq.cron.definitions import Definition
    from delayedq.cron.operator import KnownSchedule

#: What `add` takes as text, and what makes a value of it.
DURATIONS = ("every", "starting_deadline", "jitter")
INSTANTS = ("anchor", "start", "end")
TEXTS = ("cron", "timezone", "queue_name", "misfire", "overlap")
NUMBERS = ("priority", "max_runs")
JSON = ("args", "kwargs")


class CronVerbs:
    """What an operator does to schedules. Each change is recorded as an edit, which the admin can undo."""

    def __init__(self, out: OutputWrapper) -> None:
        self._out = out

    @staticmethod
    def add_arguments(parser: ArgumentParser) -> None:
        verbs = parser.add_subparsers(dest="verb", required=True)
        add_json(verbs.add_parser("list", help="All schedules, with their last and next ticks."))
        following = verbs.add_parser("next", help="The ticks to come, in the zone of their schedule and in UTC.")
        following.add_argument("names", nargs="*", metavar="NAME", help="Only these schedules (default: all).")
        following.add_argument("--count", type=positive, default=5, metavar="N", help="N ticks of each (default: 5).")
        following.add_argument(
            "--around-dst", action="store_true", help="The ticks around the next two clock changes of the zone (DST)."
        )
        add_json(following)
        for verb, said in (
            ("run", "Run a schedule's task now."),
            ("enable", "Place the ticks of a disabled schedule again, from now on."),
            ("disable", "Place no ticks of a schedule until it is enabled."),
            ("remove", "Delete a schedule of the database."),
        ):
            changing = verbs.add_parser(verb, help=said)
            changing.add_argument("name", metavar="NAME")
            add_by(changing)
            add_json(changing)
        _add_add(verbs.add_parser("add", help="Add a schedule to the database."))

    def do(self, options: dict[str, Any]) -> None:
        verbs: dict[str, Callable[[dict[str, Any]], None]] = {
            "list": self._show,
            "next": self._show,
            "run": self._run,
            "enable": self._enable,
            "disable": self._disable,
            "remove": self._remove,
            "add": self._add,
        }
        try:
            verbs[options["verb"]](options)
        except (DelayedQError, ImproperlyConfigured) as error:
            raise CommandError(str(error)) from None

    def _run(self, options: dict[str, Any]) -> None:
        scheduled = schedules.run_now(options["name"])
        note(default_store(), f"Run schedule {options['name']} now", *who_and_why(options))
        about = {"name": options["name"], "id": scheduled.id}
        value = {"schedule": options["name"], "message": int(scheduled.id) if scheduled.id else None}
        tell(self._out, options, _("%(name)s is due now, as message %(id)s.") % about, value)

    def _enable(self, options: dict[str, Any]) -> None:
        name = options["name"]
        enabled = recorded(name, "Enable", lambda: schedules.enable(name), *who_and_why(options))
        said = _("%(name)s is enabled.") if enabled else _("%(name)s was already enabled.")
        tell(self._out, options, said % {"name": name}, {"schedule": name, "changed": bool(enabled)})

    def _disable(self, options: dict[str, Any]) -> None:
        name = options["name"]
        disabled = recorded(name, "Disable", lambda: schedules.disable(name), *who_and_why(options))
        said = _("%(name)s is disabled.") if disabled else _("%(name)s was already disabled.")
        tell(self._out, options, said % {"name": name}, {"schedule": name, "changed": bool(disabled)})

    def _remove(self, options: dict[str, Any]) -> None:
        name = options["name"]
        if not recorded(name, "Delete", lambda: schedules.delete(name), *who_and_why(options)):
            raise CommandError(_("There is no schedule %(name)r in the database.") % {"name": name})
        tell(self._out, options, _("%(name)s is deleted.") % {"name": name}, {"schedule": name, "changed": True})

    def _add(self, options: dict[str, Any]) -> None:
        name, task = options["name"], options["task"]
        given = {key: options[f"given_{key}"] for key in (*DURATIONS, *INSTANTS, *TEXTS, *NUMBERS, *JSON)}
        enabled = not options["disabled"]
        first = recorded(
            name, "Add", lambda: schedules.create(name, task, enabled=enabled, **given), *who_and_why(options)
        )
        said = _("%(name)s is added; it ticks first at %(first)s.") if first else _("%(name)s is added.")
        told = said % {"name": name, "first": first and first.isoformat()}
        tell(self._out, options, told, {"schedule": name, "first": first, "changed": True})

    def _show(self, options: dict[str, Any]) -> None:
        console = tables.console_on(self._out, no_color=options["no_color"], force_color=options["force_color"])
        store, defined = default_store(), definitions()
        now = store.now()
        if options["verb"] == "list":
            known = all_schedules(store, defined, now)
            if options["json"]:
                self._out.write(as_json([_about(one) for one in known]))
            else:
                tables.show_schedules(console, known)
            return
        chosen = [_known(name, defined) for name in options["names"]]
        every = (known.definition for known in all_schedules(store, defined, now) if known.definition)
        if options["json"]:
            self._out.write(as_json([_ticks(one, options, now) for one in chosen or every]))
            return
        show = tables.show_ticks_around_changes if options["around_dst"] else tables.show_ticks
        show(console, chosen or every, options["count"])


def _about(known: KnownSchedule) -> dict[str, Any]:
    """A schedule, for programs."""
    definition = known.definition
    return {
        "name": known.name,
        "state": known.state,
        "problem": known.problem,
        "in_database": known.in_database,
        "task": definition and definition.offer.kind,
        "when": describe(definition) if definition else [],
        "last": known.last and known.last._asdict(),
        "next": known.following,
    }


def _ticks(definition: Definition, options: dict[str, Any], now: datetime) -> dict[str, Any]:
    """The ticks to come, or those around changes of the clock, for programs."""
    if options["around_dst"]:
        found = [one._asdict() for one in changes(definition.schedule, now, options["count"])]
        return {"schedule": definition.name, "changes": found}
    ticks = islice(definition.schedule.ticks_after(now), options["count"])
    return {"schedule": definition.name, "ticks": [*ticks]}


def _known(name: str, defined: dict[str, Definition]) -> Definition:
    store = default_store()
    known = named_schedule(store, defined, name, store.now())
    if known is None:
        raise CommandError(schedules.unknown(store, name))
    if known.definition is None:
        gone = _("Nobody defines the schedule %(name)r any more.") % {"name": name}
        raise CommandError(known.problem or gone)
    return known.definition


def _add_add(add: ArgumentParser) -> None:
    add_by(add)
    add.add_argument("name", metavar="NAME")
    add.add_argument("task", metavar="TASK", help="The path of a registered task.")
    for names, convert, metavar in (
        (TEXTS, str, "TEXT"),
        (DURATIONS, _duration, "DURATION"),
        (INSTANTS, _instant, "INSTANT"),
        (NUMBERS, int, "N"),
        (JSON, json.loads, "JSON"),
    ):
        for name in names:
            add.add_argument(f"--{name.replace('_', '-')}", dest=f"given_{name}", type=convert, metavar=metavar)
    add_json(add)
    add.add_argument("--disabled", action="store_true", help="Do not place ticks before it is enabled.")


def _duration(text: str) -> timedelta:
    """Such as 900, 15:00 or 1 06:00:00. Raises ValueError."""
    try:
        duration = parse_duration(text)
    except OverflowError:
        raise ValueError(text) from None
    if duration is None:
        raise ValueError(text)
    return duration


def _instant(text: str) -> datetime:
    """ISO 8601 with an offset. Raises ValueError."""
    return datetime.fromisoformat(text)
