"""Flows that ended long ago are deleted with what is stored of them, in parts: whoever does it may pause after each."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from django.db.models import Q

from delayedq.core.flows import FlowState, step_id
from delayedq.flows.sweeping import READ, members
from delayedq.models import FinishedMessage, Flow, FlowMember, FlowStep, Message
from delayedq.store.flows.ending import lock_if_free
from delayedq.store.pages import Page

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from datetime import datetime, timedelta

    from django.db.models import QuerySet

    from delayedq.store.base import Store

#: Members in one statement that deletes.
CHUNK = 1_000
#: Flows in one look.
FLOWS = 100


class _Part(NamedTuple):
    """What was done between two pauses: flows that were looked at to the end, and forgotten; members of one."""

    flows: int = 0
    forgotten: int = 0
    read: int = 0
    deleted: int = 0


def forget_flows(store: Store, older_than: timedelta, going: Iterator[_Part] | None = None, limit: int = FLOWS) -> Page:
    """Of the next flows that ended longer ago, delete those that nothing needs, with their steps.

    Their messages go with the history. A flow that did not succeed stays as long as one of its messages is a dead
    letter, or lives again. One look ends after `limit` flows or READ members, and the next one (`going`) goes on there.
    """
    going = _parts(store, older_than) if going is None else going
    looked = _Part()
    for part in going:
        looked = _Part(*map(sum, zip(looked, part, strict=True)))
        if looked.flows >= limit or looked.read + looked.deleted >= READ:
            return Page(looked.forgotten or int(looked.deleted > 0), going)
    return Page(looked.forgotten, None)


def _parts(store: Store, older_than: timedelta) -> Iterator[_Part]:
    rows = Flow.objects.using(store.alias).filter(ended_at__lt=store.now() - older_than).order_by("ended_at", "id")
    page = list(rows.values_list("ended_at", "id")[:FLOWS])
    while page:
        for ended_at, id_ in page:
            yield from _forget(store, id_, ended_at)
        ended_at, id_ = page[-1]
        following = rows.filter(Q(ended_at__gt=ended_at) | Q(ended_at=ended_at, id__gt=id_))
        page = list(following.values_list("ended_at", "id")[:FLOWS])


def _forget(store: Store, id_: int, ended_at: datetime | None) -> Iterator[_Part]:
    """Its steps go first, without which it is not retried any more; then its members, CHUNK at a time.

    What is left of it then is found again by its row. Nothing waits for one who retries it in a long transaction.
    """
    flow = Flow.objects.using(store.alias).filter(id=id_, ended_at=ended_at)
    of_flow = FlowMember.objects.using(store.alias).filter(
        step_id__gte=step_id(id_, 0), step_id__lt=step_id(id_ + 1, 0)
    )
    last: Collection[int] = ()
    if flow.exclude(outcome=FlowState.SUCCEEDED).exists():
        pages = _not_succeeded(store, id_)
        last = next(pages, ())
        for page in pages:
            if _needs(store, last):
                yield _Part(flows=1)
                return
            yield _Part(read=READ)
            last = page
    if not store.database.retried(partial(_delete_steps, store, flow, last)):
        yield _Part(flows=1)
        return
    while ids := list(of_flow.values_list("message_id", flat=True)[:CHUNK]):
        of_flow.filter(message_id__in=ids).delete()
        yield _Part(deleted=len(ids))
    yield _Part(flows=1, forgotten=flow.delete()[0])


def _not_succeeded(store: Store, flow: int) -> Iterator[list[int]]:
    """The messages of a flow that did not succeed, of READ members at once."""
    steps = FlowStep.objects.using(store.alias).filter(flow_id=flow).order_by("id")
    for page in members(store, dict(steps.values_list("id", "size")), ~Q(outcome="succeeded")):
        yield [id_ for id_, _, outcome in page if outcome != "succeeded"]


def _delete_steps(store: Store, flow: QuerySet[Flow], last: Collection[int]) -> bool:
    """Unless one of these messages is needed, or somebody has locked the flow; whether they are deleted."""
    with store.database.atomic():
        if not lock_if_free(store, flow) or _needs(store, last):
            return False
        FlowStep.objects.using(store.alias).filter(flow_id__in=flow.values("id")).delete()
    return True


def _needs(store: Store, ids: Collection[int]) -> bool:
    """Whether one of these messages ends its step once more, or may be brought back to do so."""
    dead_letters: QuerySet[Any] = FinishedMessage.objects.using(store.alias).filter(outcome="failed")
    living: QuerySet[Any] = Message.objects.using(store.alias)
    return any(rows.filter(id__in=ids).exists() for rows in (dead_letters, living)) if ids else False
