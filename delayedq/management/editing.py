"""`manage.py delayedq retry`, `cancel`, `reschedule`, `shift`, `stop`, `undo`: the edits of the admin in the shell."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from django.core.management.base import CommandError
from django.utils.translation import gettext as _

from delayedq.core.edits import Reschedule, RunNow, Shift, Spread
from delayedq.management.arguments import age
from delayedq.management.backends import chosen_store
from delayedq.management.selecting import (
    DEAD_FILTERS,
    LIVE_FILTERS,
    add_filters,
    ahead,
    at,
    ended_selection,
    ids_of,
    is_filtered,
    live_selection,
    named_live,
    unknown_name,
)
from delayedq.management.tables import word
from delayedq.management.telling import Exit, add_asking, add_json, as_json, confirm, operator, tell, who_and_why
from delayedq.models import Edit, EditedMessage, FinishedMessage, Message, with_renewals
from delayedq.operations.argument_search import argument_in
from delayedq.operations.browsing import id_in, newest_id
from delayedq.operations.bulk import (
    BulkEdit,
    becoming,
    carry_out_part,
    described,
    place_of_ended,
    place_of_live,
    preview_of,
    summary,
)
from delayedq.operations.edits import CANCEL, RESCHEDULE, RETRY, begin, stop
from delayedq.operations.live_states import is_running, state_of
from delayedq.operations.pauses import paused_now
from delayedq.operations.undo import can_undo, undo
from delayedq.operations.wording import exact, grouped, printable

if TYPE_CHECKING:
    from argparse import ArgumentParser
    from collections.abc import Callable
    from datetime import datetime

    from django.core.management.base import OutputWrapper

    from delayedq.core.edits import Change, LanePosition
    from delayedq.operations.bulk import Preview
    from delayedq.operations.edits import EditProgress
    from delayedq.store.base import Store

VERBS = {
    "retry": "Put dead letters back into their queues.",
    "cancel": "End waiting messages as cancelled.",
    "reschedule": "Let waiting messages be due at another time, or now.",
    "shift": "Let waiting messages be due later, or earlier, by an amount.",
}
DOES = {"retry": RETRY, "cancel": CANCEL, "reschedule": RESCHEDULE, "shift": RESCHEDULE}
#: `undo --list` shows this many edits.
EDITS = 50


# Options


def add_change(verb: str, parser: ArgumentParser) -> None:
    """The options of one of VERBS."""
    is_retry = verb == "retry"
    parser.add_argument("messages", metavar="ID" if is_retry else "ID|KEY", nargs="*", help="These messages; or:")
    add_filters(parser, DEAD_FILTERS if is_retry else LIVE_FILTERS)
    parser.add_argument("--all", action="store_true", help="All of them, if no filter is given.")
    if verb == "shift":
        direction = parser.add_mutually_exclusive_group(required=True)
        direction.add_argument("--later", type=age, metavar="TIME", help="By this much, as 90s, 5m, 2h or 1d.")
        direction.add_argument("--earlier", type=age, metavar="TIME")
    if verb == "reschedule":
        time = parser.add_mutually_exclusive_group(required=True)
        time.add_argument("--now", action="store_true", help="What is due already keeps its place.")
        time.add_argument("--to", type=ahead, metavar="TIME", help="ISO 8601; or +2h: in two hours.")
        _add_spread(time, parser)
    if is_retry:
        _add_spread(parser, parser)
    add_asking(parser)
    add_json(parser)


def _add_spread(group: Any, parser: ArgumentParser) -> None:
    group.add_argument("--over", type=age, metavar="TIME", help="Spread them over a period, from --from on.")
    parser.add_argument("--from", dest="start", type=ahead, metavar="TIME", help="Of --over (default: now).")
    parser.add_argument("--jitter", type=_share, default=0.1, metavar="PERCENT", help="Of --over (default: 10).")


def _share(text: str) -> float:
    share = float(text) / 100
    if not 0 <= share <= 1:
        raise ValueError(text)
    return share


def _change(verb: str, options: dict[str, Any], now: datetime) -> Change | None:
    """What the options say becomes of each message."""
    match verb:
        case "shift":
            return Shift(-options["earlier"] if options["later"] is None else options["later"])
        case "reschedule" if options["over"] is None and options["start"] is not None:
            raise CommandError(_("--from goes with --over."))
        case "reschedule" if options["now"]:
            return RunNow()
        case "reschedule" if options["to"] is not None:
            return Reschedule(at(options["to"], now))
        case "reschedule" | "retry":
            start = now if options["start"] is None else at(options["start"], now)
            return Spread(start, options["over"] or timedelta(0), options["jitter"])
        case _:
            return None


# retry, cancel, reschedule, shift


def run_change(verb: str, out: OutputWrapper, err: OutputWrapper, options: dict[str, Any]) -> None:
    """Show what would be done, ask, and do it. Raises CommandError if nothing is, with its code."""
    store, backends = chosen_store(options["backend"])
    bulk = _chosen(verb, store, options)
    preview = preview_of(store, bulk)
    is_any = bool(preview.rows or preview.skipped or preview.changing.number or not preview.changing.exact)
    if not is_any and (hint := unknown_name(store, backends, options)):
        raise CommandError(hint)
    said = described(bulk.does, bulk.change, bulk.as_of)
    if options["dry_run"]:
        _show(out, said, bulk, preview, for_programs=options["json"])
    elif not is_any:
        tell(out, options, _nothing(options), _value(None, bulk, Counter()))
    else:
        _show(err if options["json"] else out, said, bulk, preview)
        _do(store, out, err, bulk, preview, options)


def _do(
    store: Store, out: OutputWrapper, err: OutputWrapper, bulk: BulkEdit, preview: Preview, options: dict[str, Any]
) -> None:
    """Ask, do it, and tell. Raises CommandError if nothing is changed."""
    if preview.changing.exact and not preview.changing.number:
        if options["json"]:
            out.write(as_json(_value(None, bulk, Counter())))
        raise CommandError(_("None of these messages can be changed."), returncode=Exit.UNCHANGED)
    said = described(bulk.does, bulk.change, bulk.as_of)
    confirm(_("%(action)s: %(messages)s?") % {"action": said, "messages": preview.changing.of_messages}, options, err)
    if not options["messages"]:
        bulk = bulk._replace(most=preview.changing.most)
    edit = begin(store, bulk.does, said, *who_and_why(options))
    skipped = _in_parts(edit, lambda after: carry_out_part(store, edit, bulk, after), err)
    undoable = _("Undo: manage.py delayedq undo %(edit)s") % {"edit": edit.pk}
    is_cut = not preview.changing.exact and edit.changed == bulk.most
    rest = _(" It stopped there: others that match are as they were.") if is_cut else ""
    told = f"{said}: {summary(edit.changed, skipped)}.{rest}" + (f" {undoable}" if edit.changed else "")
    tell(out, options, told, _value(edit, bulk, skipped) | {"is_cut": is_cut})
    if not edit.changed:
        raise CommandError(_("Nothing was changed."), returncode=Exit.UNCHANGED)


def _nothing(options: dict[str, Any]) -> str:
    if options["search"] is None:
        return _("No message matches.")
    said = _("No key of these messages begins with %(text)r; name what a search finds by id or payload by its id.")
    return said % {"text": options["search"]}


def _chosen(verb: str, store: Store, options: dict[str, Any]) -> BulkEdit:
    """Raises CommandError if nothing is named, or both messages and filters are."""
    names = DEAD_FILTERS if verb == "retry" else LIVE_FILTERS
    filtered = is_filtered(options, names)
    if bool(options["messages"]) + (filtered or options["all"]) != 1:
        raise CommandError(_("Name messages, or give filters, or --all; not both."))
    if options["search"] is not None and argument_in(options["search"]):
        raise CommandError(
            _("What a search for arguments finds can't be changed as a whole: list it, and name messages.")
        )
    now, texts = store.now(), options["messages"]
    does, change = DOES[verb], _change(verb, options, now)
    if texts:
        ids = ids_of(texts) if verb == "retry" else [one.pk for one in named_live(store, texts)]
        return BulkEdit(does, ids, now, change=change)
    if verb == "retry":
        return BulkEdit(does, ended_selection({**options, "state": "failed"}, now), now, change=change)
    return BulkEdit(does, live_selection(options, now), now, newest_id(store.alias), change=change)


def _show(out: OutputWrapper, said: str, bulk: BulkEdit, preview: Preview, *, for_programs: bool = False) -> None:
    """The numbers, and what becomes of the first messages."""
    places = [place_of_live(row) if isinstance(row, Message) else place_of_ended(row) for row in preview.rows]
    then = becoming(bulk.change, places, bulk.as_of) if bulk.change is not None else places
    each = [*zip(preview.rows, places, then, strict=True)]
    if for_programs:
        number = {"changing": preview.changing.number, "exact": preview.changing.exact, "most": preview.changing.most}
        about = {"action": bulk.does, "description": said, **number, "skipped": preview.skipped}
        out.write(as_json(about | {"messages": [_compared(*one) for one in each]}))
        return
    for row, before, after in each:
        becomes = "" if before == after else f" -> {exact(after.scheduled_at)}"
        out.write(f"  {_name(row)}: {exact(before.scheduled_at)}{becomes}")
    left = f" ({_('skipped: %(reasons)s') % {'reasons': ', '.join(preview.skipped)}})" if preview.skipped else ""
    out.write(f"{said}: {preview.changing.of_messages}{left}.")
    if not preview.changing.exact:
        most = {"most": grouped(preview.changing.most)}
        out.write(_("At most %(most)s are changed now, and then it stops.") % most)


def _compared(row: Message | FinishedMessage, before: LanePosition, after: LanePosition) -> dict[str, Any]:
    """A message with its place before and after the change, for programs."""
    return {"id": row.pk, "kind": row.kind, "key": row.key, "before": before._asdict(), "after": after._asdict()}


def _in_parts(edit: Edit, do: Callable[[int], EditProgress], err: OutputWrapper) -> Counter[str]:
    """Do all parts of an edit or of its undo; returns what was skipped. Raises CommandError on Ctrl-C."""
    after: int | None = 0
    skipped: Counter[str] = Counter()
    changed = 0
    try:
        while after is not None:
            progress = do(after)
            after, changed, skipped = progress.after, changed + progress.changed, skipped + progress.skipped
            if after is not None:
                err.write(summary(changed, skipped))
    except KeyboardInterrupt:
        about = {"edit": edit.pk, "summary": summary(changed, skipped)}
        said = _("Interrupted in edit %(edit)s: %(summary)s so far.") % about
        raise CommandError(said, returncode=Exit.INTERRUPTED) from None
    return skipped


def _value(edit: Edit | None, bulk: BulkEdit, skipped: Counter[str]) -> dict[str, Any]:
    about = {"edit": edit and edit.pk, "action": bulk.does, "description": edit.description if edit else ""}
    return {**about, "changed": edit.changed if edit else 0, "skipped": dict(skipped), "is_cut": False}


# stop


def add_stop(parser: ArgumentParser) -> None:
    parser.add_argument("messages", metavar="ID|KEY", nargs="+")
    add_asking(parser)
    add_json(parser)


def run_stop(out: OutputWrapper, err: OutputWrapper, options: dict[str, Any]) -> None:
    """End running messages as cancelled, and tell their tasks. There is no undo. Raises CommandError if none runs."""
    store, _backends = chosen_store(options["backend"])
    found, now, paused = named_live(store, options["messages"]), store.now(), paused_now(store)
    running = [one for one in with_renewals(found, now, store.alias) if is_running(one, now)]
    for one in found if not options["json"] else []:
        state, remark = state_of(one, now, paused)
        out.write(f"  {_name(one)}: {word(state)} {remark}".rstrip())
    if options["dry_run"]:
        value = {"action": "stop", "messages": [one.pk for one in running]}
        tell(out, options, _("%(number)s would be stopped.") % {"number": len(running)}, value)
        return
    if not running:
        raise CommandError(_("None of these messages runs."), returncode=Exit.UNCHANGED)
    confirm(_("Stop what runs of these (%(number)s)? There is no undo.") % {"number": len(running)}, options, err)
    by, why = who_and_why(options)
    edits = {one.pk: edit.pk for one in running if (edit := stop(store, one, by, why)) is not None}
    number = {"stopped": len(edits), "number": len(found)}
    tell(out, options, _("%(stopped)s of %(number)s stopped.") % number, {"action": "stop", "stopped": edits})
    if not edits:
        raise CommandError(_("Nothing was changed."), returncode=Exit.UNCHANGED)


def _name(message: Message | FinishedMessage) -> str:
    return printable(f"#{message.pk} {message.kind} {message.key or ''}".strip())


# undo


def add_undo(parser: ArgumentParser) -> None:
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("edit", metavar="EDIT", nargs="?", help="The number of the edit.")
    which.add_argument("--list", action="store_true", help=f"Show the last {EDITS} edits, also those of the admin.")
    add_asking(parser, why=False)
    add_json(parser)


def run_undo(out: OutputWrapper, err: OutputWrapper, options: dict[str, Any]) -> None:
    """Give messages that still are as an edit left them their previous values. Raises CommandError."""
    store, _backends = chosen_store(options["backend"])
    edits = Edit.objects.using(store.alias)
    if options["list"]:
        found = list(edits.order_by("-id")[:EDITS])
        tell(out, options, "\n".join(map(_line, found)) or _("There are no edits."), [_about(one) for one in found])
        return
    edit = edits.filter(id=id_in(options["edit"]) or 0).first()
    if edit is None:
        raise CommandError(_("There is no such edit; edits are deleted after 30 days."))
    if not can_undo(edit):
        raise CommandError(_("This edit was undone already, changed nothing, or can't be undone."))
    if options["dry_run"] or not options["json"]:
        tell(out, options, _line(edit), _about(edit))
    if options["dry_run"]:
        return
    confirm(_("Undo this?"), options, err)
    by = operator(options)
    skipped = _in_parts(edit, lambda after: undo(store, edit, after, by), err)
    changed = EditedMessage.objects.using(store.alias).filter(edit=edit, undone=True).count()
    value = {"edit": edit.pk, "action": "undo", "changed": changed, "skipped": dict(skipped)}
    tell(out, options, _("Undone: %(summary)s.") % {"summary": summary(changed, skipped)}, value)
    if not changed:
        raise CommandError(_("Nothing was changed."), returncode=Exit.UNCHANGED)


def _about(edit: Edit) -> dict[str, Any]:
    names = ("id", "action", "description", "made_at", "made_by", "changed", "skipped", "undone_at", "undone_by")
    return {name: getattr(edit, name) for name in names} | {"can_undo": can_undo(edit)}


def _line(edit: Edit) -> str:
    """Such as "45  Sat 2026-11-28 03:12:04 UTC ann: Cancel (12 messages changed)"."""
    done = summary(edit.changed, Counter())
    undone = _(", undone by %(name)s") % {"name": edit.undone_by or "-"} if edit.undone_at else ""
    said = edit.description or edit.action
    return printable(f"{edit.pk}  {exact(edit.made_at)}  {edit.made_by or '-'}: {said} ({done}{undone})")
