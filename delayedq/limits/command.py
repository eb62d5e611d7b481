"""`manage.py delayedq channels`: list channels and limits, pause and resume them, set and clear limits live."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from django.core.management.base import CommandError
from django.utils.translation import gettext as _
from django.utils.translation import pgettext

from delayedq import limits
from delayedq.exceptions import InvalidLimit, InvalidMessage
from delayedq.limits.operator import (
    MOST_COUNTED,
    MOST_LISTED,
    known_channels,
    page_of_channels,
    page_of_limits,
    scopes_now,
    terms_of,
)
from delayedq.limits.rules import Rate
from delayedq.limits.setting import check_scope
from delayedq.management.arguments import age
from delayedq.management.queues import near, told_paused, told_resumed
from delayedq.management.telling import add_by, add_json, tell, who_and_why
from delayedq.operations.acts import note
from delayedq.operations.wording import both, grouped, printable

if TYPE_CHECKING:
    from argparse import ArgumentParser
    from collections.abc import Iterator
    from datetime import datetime

    from django.core.management.base import OutputWrapper

    from delayedq.limits.operator import ListedChannel, ScopeNow
    from delayedq.limits.rules import Limit
    from delayedq.store.base import Store

VERBS = {
    "list": "What waits and runs, the first 25 channels, and the limits.",
    "pause": "Let nothing more start in a channel, queue, task or limit.",
    "resume": "Let it start again.",
    "set": "Set a limit live, in place of that of the code.",
    "skip": "Let other messages of a channel start before the one that blocks it.",
    "clear": "Restore the limit from the code.",
}


def add_channels(parser: ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="verb", required=True)
    for name, said in VERBS.items():
        verb = verbs.add_parser(name, help=said)
        verb.add_argument("--backend", metavar="NAME", help="In the database of this backend of TASKS.")
        if name != "list":
            verb.add_argument("scope", metavar="NAME", help="A queue, the path of a task, or a shared limit.")
            add_by(verb)
        verb.add_argument("--channel", default="", help="Only this channel.")
        add_json(verb)
        if name == "pause":
            verb.add_argument("--new", action="store_true", help="Also a channel that has no messages now.")
        if name == "set":
            verb.add_argument("--concurrency", type=int, metavar="N", help="How many run at once.")
            verb.add_argument("--rate", type=int, metavar="N", help="How many start in each --per.")
            verb.add_argument("--per", type=age, metavar="TIME", help="As 10s, 5m or 1h.")
            verb.add_argument("--burst", type=int, metavar="N", help="How many start at once; as --rate, if left out.")
            verb.add_argument("--window", action="store_true", help="Not spread over --per, but in windows of it.")
            verb.add_argument("--first-only", action="store_true", help="Retries do not count for --rate.")
            verb.add_argument("--size", type=int, metavar="N", help="How many wait and run.")
            verb.add_argument("--weight", type=float, metavar="W", help="Of a channel: its part of the work, by 1.")
            verb.add_argument("--share", type=int, metavar="N", help="Of a channel: so many come before others.")


def run_channels(store: Store, out: OutputWrapper, options: dict[str, Any]) -> None:
    """Raises CommandError for what is refused."""
    if options["verb"] == "list":
        now, channel = store.now(), options["channel"]
        found = _found(store, now, channel or None)
        tell(out, options, "\n".join(_lines(found, now, channel)), _listed(found))
        return
    try:
        did, said = _change(store, options)
    except (InvalidLimit, InvalidMessage) as error:
        raise CommandError(str(error)) from None
    if did:
        note(store, said, *who_and_why(options))
    about = {"scope": options["scope"], "channel": options["channel"], "verb": options["verb"]}
    tell(out, options, said, {**about, "changed": did, "said": said})


class Found(NamedTuple):
    """`more`: there are other channels, or other limits."""

    limits: list[ScopeNow]
    channels: list[ListedChannel]
    more: bool


def _found(store: Store, now: datetime, name: str | None) -> Found:
    """`name`: only this channel and its limits, beside those that channels share."""
    shared, page = scopes_now(store, now), page_of_channels(store, now, name=name)
    own = page_of_limits(store, now, name=name, most=MOST_LISTED)
    more = bool(page.following or own.following) or shared.is_cut
    return Found([*shared.limits, *own.limits], page.channels, more)


def _listed(found: Found) -> dict[str, Any]:
    """For programs."""

    def told(one: ScopeNow | ListedChannel) -> dict[str, Any]:
        return {**one._asdict(), "limit": one.limit.as_json(), "is_paused": one.limit.is_paused}

    return {
        "limits": list(map(told, found.limits)),
        "channels": list(map(told, found.channels)),
        "more": found.more,
    }


def _check_known(store: Store, scope: str, channel: str) -> None:
    """Raises InvalidLimit for a channel that has no messages and no limit of its own, with a near name."""
    known = known_channels(store, scope, channel)
    if channel not in known:
        said = _("%(scope)r has no channel %(name)r") % {"scope": scope, "name": channel}
        raise InvalidLimit(said + near(channel, known) + " " + _("To pause it all the same, add --new."))


def _change(store: Store, options: dict[str, Any]) -> tuple[bool, str]:
    """Whether anything was changed, and what is said."""
    scope, channel = options["scope"], options["channel"]
    name = _named(scope, channel)
    match options["verb"]:
        case "pause":
            check_scope(scope, channel)
            if channel and not options["new"]:
                _check_known(store, scope, channel)
            did = limits.pause(scope, channel=channel, store=store)
            return did, told_paused(name, did)
        case "resume":
            did = limits.resume(scope, channel=channel, store=store)
            return did, told_resumed(name) if did else _("%(name)s is not paused.") % {"name": name}
        case "skip":
            did = limits.skip(scope, channel=channel, store=store)
            said = _("%(name)s is not blocked any more.") if did else _("%(name)s is blocked by no message.")
            return did, said % {"name": name}
        case "clear":
            did = limits.clear(scope, channel=channel, store=store)
            again, never = (
                _("%(name)s has its limit from the code again."),
                _("%(name)s has no limit that was set live."),
            )
            return did, (again if did else never) % {"name": name}
    terms = {name: options[name] for name in ("concurrency", "size", "weight", "share")} | {"rate": _rate(options)}
    return True, f"{name}: {terms_of(limits.set(scope, channel=channel, store=store, **terms))}."


def _rate(options: dict[str, Any]) -> Rate | None:
    given = options["rate"], options["per"], options["burst"]
    if not any(given):
        return None
    try:
        return Rate(*given, window=options["window"], retries=not options["first_only"])
    except ValueError as error:
        raise InvalidLimit(_("%(error)s; --rate and --per go together.") % {"error": error}) from None


def _named(scope: str, channel: str) -> str:
    of = _("channel %(channel)s of %(scope)s") if channel else "%(scope)s"
    return printable(of % {"channel": channel, "scope": scope})


def _lines(found: Found, now: datetime, channel: str) -> Iterator[str]:
    for one in found.limits:
        said = [_state(one.limit, one.released_at, now)]
        if one.running is not None:
            said.append(_("%(number)s running") % {"number": grouped(one.running)})
        live = _(" (set live)") if one.is_live else ""
        yield f"{_named(one.scope, one.channel)}: {', '.join(said)}{live}"
    for each in found.channels:
        yield _line(each, now)
    if not found.channels:
        none, known = _("No channel has messages."), _("No channel %(name)s has messages.")
        yield known % {"name": printable(channel)} if channel else none
    if found.more:
        yield _("There are more: name one by --channel, or see the admin.")


def _line(one: ListedChannel, now: datetime) -> str:
    over = _("over %(number)s") % {"number": grouped(MOST_COUNTED)}
    about = {
        "kind": printable(one.kind),
        "queue": printable(one.queue),
        "channel": printable(one.name) or _("(no name)"),
        "waiting": over if one.waiting > MOST_COUNTED else grouped(one.waiting),
        "running": grouped(one.running),
        "state": _state(one.limit, one.released_at, now),
    }
    said = _("%(kind)s in %(queue)s, channel %(channel)s: %(waiting)s waiting, %(running)s running; %(state)s") % about
    if one.blocked_until is None:
        return said
    blocked = {"id": one.blocked_by, "until": both(one.blocked_until, now)}
    return said + _(", blocked by message %(id)s until %(until)s") % blocked


def _state(limit: Limit, released_at: datetime | None, now: datetime) -> str:
    if limit.is_paused:
        return pgettext("state", "paused")
    release = _(", next release %(when)s") % {"when": both(released_at, now)} if released_at else ""
    return f"{terms_of(limit)}{release}"
