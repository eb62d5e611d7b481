"""`manage.py delayedq list` and `show`: what the lists of the admin and the page of a message show."""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING, Any

from django.core.management.base import CommandError
from django.utils.translation import gettext as _
from django.utils.translation import pgettext

from delayedq.management import tables
from delayedq.management.arguments import positive
from delayedq.management.backends import all_stores, chosen_store
from delayedq.management.selecting import (
    ENDED,
    LIVE_STATES,
    OUTCOMES,
    add_filters,
    ended_selection,
    live_selection,
    position,
    unknown_name,
)
from delayedq.management.telling import add_json, as_json, plain, tell
from delayedq.masking import shown
from delayedq.models import FinishedMessage, Message, with_renewals
from delayedq.operations import exporting
from delayedq.operations.browsing import PAGE, find_ended, find_live, position_text
from delayedq.operations.counting import Count
from delayedq.operations.explain import explain
from delayedq.operations.group_names import name_of
from delayedq.operations.lists import ended_list, live_list
from delayedq.operations.live_states import state_of
from delayedq.operations.pauses import paused_now
from delayedq.operations.sending import by_name
from delayedq.operations.timeline import log_in, ran_for, records_in, timeline
from delayedq.operations.wording import both, exact, printable
from delayedq.steps.store import recorded_steps
from delayedq.store.operator import Position
from delayedq.store.progress import read_progress

if TYPE_CHECKING:
    from argparse import ArgumentParser
    from collections.abc import Callable, Iterable, Iterator

    from django.core.management.base import OutputWrapper

    from delayedq.operations.browsing import Page
    from delayedq.store.base import Store

    AnyMessage = Message | FinishedMessage

#: What `list --json` tells of a message, beside its state.
LIVE = (
    *("id", "queue", "kind", "key", "priority", "scheduled_at", "created_at", "attempt", "max_attempts"),
    *("leased_by", "leased_until"),
)
ENDED_COLUMNS = (
    *("id", "queue", "kind", "key", "priority", "scheduled_at", "started_at", "finished_at", "created_at"),
    *("attempts", "max_attempts", "worker", "error"),
)
FILTERS = ("queue", "task", "state", "key", "search", "error", "group", "priority", "worker", "since", "until")


def add_list(parser: ArgumentParser) -> None:
    add_filters(parser, FILTERS, (*LIVE_STATES, *OUTCOMES, ENDED))
    parser.add_argument("--after", type=position, metavar="PLACE", help="Go on there: as an earlier list has said.")
    parser.add_argument("--limit", type=positive, default=PAGE, metavar="N", help=f"The first N messages ({PAGE}).")
    shape = parser.add_mutually_exclusive_group()
    shape.add_argument("--json", action="store_true", help="For programs: JSON.")
    shape.add_argument("--export", choices=("csv", "json"), help="All that match, with payloads, as the admin exports.")


def add_show(parser: ArgumentParser) -> None:
    parser.add_argument("message", metavar="ID|KEY")
    add_json(parser)


# list


def run_list(out: OutputWrapper, err: OutputWrapper, options: dict[str, Any]) -> None:
    store, backends = chosen_store(options["backend"])
    now = store.now()
    if options["export"]:
        _export(store, out, options, now)
        return
    told = _ended(store, options, now) if _is_of_ended(options) else _live(store, options, now)
    if not told.rows and (hint := unknown_name(store, backends, options)):
        err.write(hint)
    if options["json"]:
        value = {"count": told.number.number, "exact": told.number.exact, "reached": told.reached}
        out.write(as_json({**value, "messages": told.values}))
        return
    console = tables.console_on(out, no_color=options["no_color"], force_color=options["force_color"])
    if told.rows:
        console.print(tables.of_messages(told.titles, told.cells))
    out.write(_counted(told.number, len(told.rows)))
    if told.reached is not None:
        further = f"--after {told.reached}"
        out.write(_("The look stopped at its bound. There may be more: go on with %(option)s.") % {"option": further})


def _is_of_ended(options: dict[str, Any]) -> bool:
    asked = options["state"] in {*OUTCOMES, ENDED} or (options["error"], options["group"]) != (None, None)
    if asked and options["state"] in LIVE_STATES:
        raise CommandError(_("--error and --group are of dead letters, --state %(state)s is not.") % options)
    return asked


def _counted(number: Count, rows: int) -> str:
    if not rows and number.exact:
        return _("No message matches.")
    said = number.of_messages
    more = _("%(count)s; these are the first %(shown)s.") % {"count": said, "shown": rows}
    return said if number.exact and number.number <= rows else more


class Listed:
    """The rows of a list. `values`: what programs are told of each; `cells`: what people are.

    `reached`: where the look stopped at its bound, as --after takes it; None: it did not.
    """

    def __init__(self, number: Count, rows: list[AnyMessage], reached: str | None, titles: list[str]) -> None:
        self.number, self.rows, self.reached, self.titles = number, rows, reached, titles
        self.values: list[dict[str, Any]] = []
        self.cells: list[list[str]] = []


def _live(store: Store, options: dict[str, Any], now: datetime) -> Listed:
    selection, prefix = live_selection(options, now), options["key"]
    after = options["after"]
    first = live_list(store, selection, after, payload=prefix is None)
    number = first.number if after is None else live_list(store, selection, payload=prefix is None).number
    if prefix is not None and first.search is not None:  # a search also finds an id
        first.page.rows[:] = [one for one in first.page.rows if (one.key or "").startswith(prefix)]
        number = number if first.search.is_cut else Count(len(first.page.rows), exact=True)
    found, reached = _first(first.page, lambda after: live_list(store, selection, after).page, options["limit"])
    rows = with_renewals(found, now, store.alias)
    titles = [_("id"), _("state"), _("task"), _("key"), pgettext("state", "due"), _("attempt"), _("queue")]
    assert number is not None
    told, paused = Listed(number, [*rows], reached, titles), paused_now(store)
    for one in rows:
        state, remark = state_of(one, now, paused)
        told.values.append({"state": state, **{name: getattr(one, name) for name in LIVE}})
        attempt = f"{one.attempt}/{one.max_attempts}"
        word = f"{tables.word(state)} {remark}".strip()
        told.cells.append(_cells(one, word, both(one.scheduled_at, now), attempt, one.queue))
    return told


def _ended(store: Store, options: dict[str, Any], now: datetime) -> Listed:
    selection = ended_selection(options, now)
    if options["search"] is not None:
        selection = selection.searching()
    first = ended_list(store, selection, options["after"])
    number = first.number if options["after"] is None else ended_list(store, selection).number
    if options["search"] is not None and options["after"] is None:
        first.page.rows[:0] = first.by_id
        number = first.total
    found, reached = _first(first.page, lambda before: ended_list(store, selection, before).page, options["limit"])
    titles = [_("id"), _("state"), _("task"), _("key"), _("ended"), _("attempts"), _("queue"), _("error")]
    assert number is not None
    told = Listed(number, [*found], reached, titles)
    for one in map(shown, found):
        named = name_of(one.fingerprint) if one.fingerprint is not None else None
        values = {"state": one.outcome, "group": named, **{name: getattr(one, name) for name in ENDED_COLUMNS}}
        told.values.append(values)
        attempts = f"{one.attempts}/{one.max_attempts}"
        ended = both(one.finished_at, now)
        told.cells.append(_cells(one, tables.word(one.outcome), ended, attempts, one.queue, one.error or ""))
    return told


def _first[Row: (Message, FinishedMessage)](
    page: Page[Row], following: Callable[[Any], Page[Row]], limit: int
) -> tuple[list[Row], str | None]:
    """The first rows of this page and of those that follow, each once; and where the look stopped at its bound.

    It goes no further then, as the page of the admin does not.
    """
    found: dict[int, Row] = {}
    while True:
        for row in page.rows:
            found.setdefault(row.pk, row)
        if page.after is None or page.is_cut or len(found) >= limit:
            break
        page = following(page.after)
    is_cut = page.is_cut and page.after is not None and len(found) < limit
    reached = position_text(page.after) if is_cut and isinstance(page.after, Position) else None
    return list(found.values())[:limit], reached


def _cells(one: AnyMessage, state: str, *others: str) -> list[str]:
    return [printable(text) for text in (str(one.pk), state, one.kind, one.key or "", *others)]


def _export(store: Store, out: OutputWrapper, options: dict[str, Any], now: datetime) -> None:
    """All that match, a page in memory at a time."""
    if options["key"] is not None:
        raise CommandError(_("--export takes --search, not --key."))
    names: tuple[str, ...]
    rows: Iterable[dict[str, Any]]
    if _is_of_ended(options):
        names, rows = exporting.ENDED, exporting.ended_rows(store, ended_selection(options, now), payload=True)
    else:
        names, rows = exporting.LIVE, exporting.live_rows(store, live_selection(options, now), payload=True)
    lines = exporting.csv_lines(rows, names) if options["export"] == "csv" else exporting.json_lines(rows)
    for line in lines:
        out.write(line, ending="")


# show


def run_show(out: OutputWrapper, options: dict[str, Any]) -> None:
    """Of all databases, unless one is chosen. Raises CommandError if there is no such message."""
    stores = [chosen_store(options["backend"])[0]] if options["backend"] else all_stores()
    text = options["message"]
    found = [(store, one) for store in stores for one in [*find_live(store, text), *find_ended(store, text)]]
    if not found:
        said = _("There is no live message with the id or key %(text)r, and no ended one with that id.")
        raise CommandError(said % {"text": text})
    values = [about for store, one in found if (about := _about(store, one.pk)) is not None]
    tell(out, options, "\n".join(line for one in values for line in _lines(one)), values)


def _about(store: Store, id_: int) -> dict[str, Any] | None:
    """What is told of one message, masked as on its page; None if it is gone meanwhile."""
    now = store.now()
    live = with_renewals(Message.objects.using(store.alias).filter(pk=id_), now, store.alias)
    ended = list(FinishedMessage.objects.using(store.alias).filter(pk=id_)) if not live else []
    if live:
        state, remark = state_of(live[0], now, paused_now(store))
    elif ended:
        state, remark = ended[0].outcome, ran_for(ended[0])
    else:
        return None
    return _told(store, (live or ended)[0], state, remark, now)


def _told(store: Store, message: AnyMessage, state: str, remark: str, now: datetime) -> dict[str, Any]:
    names: tuple[str, ...] = exporting.LIVE if isinstance(message, Message) else exporting.ENDED
    masked = shown(message)
    large = {"payload", "metadata", "errors", "result"}
    progress = read_progress(store, message.pk)
    return {
        "database": store.alias,
        "state": state,
        "remark": remark,
        **{name: getattr(masked, name) for name in names if name not in large},
        "arguments": by_name(masked.kind, masked.payload),
        **{name: getattr(masked, name) for name in names if name in large},
        "answers": [answer._asdict() for answer in explain(message, now, store)],
        "timeline": [event._asdict() for event in timeline(store, message, now)],
        "progress": progress and progress._asdict(),
        "steps": [step.name for step in recorded_steps(store, message.pk)],
    }


#: What the text of `show` says elsewhere, or only `--json` tells.
SAID_ELSEWHERE = frozenset({"id", "kind", "key", "state", "remark", "payload", "errors", "answers", "timeline"})


def _lines(about: dict[str, Any]) -> Iterator[str]:
    """The facts that there are, why it does not run or how it ended, its timeline, and its last error."""
    name = f"#{about['id']} {about['kind']} {about['key'] or ''}".strip()
    yield printable(f"{name}: {tables.word(about['state'])} {about['remark']}".strip())
    for title, value in about.items():
        if title not in SAID_ELSEWHERE and value not in (None, "", [], {}):
            yield printable(f"  {title}: {_said(value)}")
    for answer in about["answers"]:
        yield printable(f"  {answer['text']}")
    for event in about["timeline"]:
        yield printable(f"  {exact(event['at'])}  {event['what']}  {event['detail']}".rstrip())
    for record in records_in(about["errors"])[-1:]:
        for line in str(record.get("traceback") or "").splitlines():
            yield f"    {printable(line)}"
        for line in log_in(record):
            yield f"  {printable(line)}"


def _said(value: Any) -> str:
    """A value in one line."""
    if isinstance(value, datetime):
        return exact(value)
    return json.dumps(value, default=plain, ensure_ascii=False) if isinstance(value, dict | list) else str(value)
