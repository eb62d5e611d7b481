"""What is known of a channel: how many messages run and wait in it, its limits, and when the next may start."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from django.db.models import Q
from django.utils.translation import gettext as _

from delayedq.core.channels import bucket_name, channel_id
from delayedq.core.limiting import Limit
from delayedq.limits import definitions
from delayedq.models import Channel, ChannelGroup, ChannelMessage, LimitState
from delayedq.operations.live_places import count_live
from delayedq.operations.wording import both, grouped, span
from delayedq.store.channels.places import Places
from delayedq.store.channels.requests import Rules
from delayedq.store.channels.visits import bucket_of, room_of
from delayedq.store.protocol import BARE
from delayedq.tasks import registered
from delayedq.tasks.channels import UNLIMITED, rules_known, rules_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from datetime import datetime
    from typing import Any

    from delayedq.models import Message
    from delayedq.store.base import Store
    from delayedq.store.channels.visits import HasTokens

#: Waiting messages are counted up to this number.
MOST_WAITING = 5_000


class LimitNow(NamedTuple):
    """A limit at a moment. `released_at`: when the next message may start by its rate; None: one may now.

    `scope`: the name of the queue, the task or the shared limit; "": it is the channel's own.
    """

    scope: str
    limit: Limit
    running: int
    released_at: datetime | None

    @property
    def is_full(self) -> bool:
        return self.limit.concurrency is not None and self.running >= self.limit.concurrency

    @property
    def is_in_the_way(self) -> bool:
        """Whether messages that are due wait for it."""
        return self.is_full or self.released_at is not None


def set_for(live: Mapping[tuple[str, str], Mapping[str, Any]], queue: str, kind: str, name: str) -> dict[str, Any]:
    """What is set live for a channel: of what both say, that of the task goes before that of the queue."""
    return {**live.get((queue, name), {}), **live.get((kind, name), {})}


def limits_now(store: Store, queue: str, kind: str, name: str, now: datetime) -> Iterator[LimitNow]:
    """The limits of a channel: its own, then those that it shares with others."""
    rules, set_live, places = rules_here(queue, kind), definitions(store), Places(store, now)
    own = set_for(set_live, queue, kind, name) if name else {}
    limit = (rules.channel or UNLIMITED).overridden(own) if own else rules.channel
    if limit is not None:
        id_ = channel_id(queue, kind, name)
        running, _ = places.running([id_])
        yield _now("", limit, running[id_].number, Channel.objects.using(store.alias).filter(pk=id_).first(), now)
    states = buckets_now(store)
    for scope, defined in rules.scopes:
        limit = defined.overridden(set_live.get((scope, ""), {}))
        if limit == UNLIMITED:
            continue
        groups = [one.pk for one in ChannelGroup.objects.using(store.alias) if scope in _scopes(one)]
        running_in_scope = places.running_by_group(groups).total()
        yield _now(scope, limit, running_in_scope, states.get(bucket_name(scope)), now)


def buckets_now(store: Store) -> dict[str, LimitState]:
    """The token buckets of the limits that channels share, by `bucket_name`."""
    return {one.channel: one for one in LimitState.objects.using(store.alias).filter(scope="", tokens__isnull=False)}


def _now(scope: str, limit: Limit, running: int, state: HasTokens | None, now: datetime) -> LimitNow:
    rate_only = Limit(rate=limit.rate)
    return LimitNow(scope, limit, running, room_of(rate_only, 0, bucket_of(state), 1, now).released_at)


def rules_here(queue: str, kind: str) -> Rules:
    """The limits of a task in a queue, as this process knows them."""
    if BARE in queue:
        return rules_known(queue)
    task = registered.get(kind)
    return Rules() if task is None else rules_of(task, queue)


def _scopes(group: ChannelGroup) -> list[str]:
    return [scope for scope, _ in rules_here(group.queue, group.kind).scopes]


def why_limited(store: Store, message: Message, name: str, now: datetime) -> Iterator[str]:
    """Why a due message with a channel waits, in sentences; none if nothing is in its way."""
    whose = f"channel {name}" if name else "its task"
    for one in limits_now(store, message.queue, message.kind, name, now):
        subject = f"The limit {one.scope}" if one.scope else whose[0].upper() + whose[1:]
        if one.limit.is_paused:
            yield f"{subject} is paused."
        elif one.is_full:
            yield f"{subject} has {one.running:,} of {one.limit.concurrency:,} running."
        elif one.released_at is not None:
            yield f"{subject} has its next release {both(one.released_at, now)}."
    if (head := _head(store, message, name)) is not None and head.due_at > now:
        yield (
            f"{whose[0].upper()}{whose[1:]} is blocked by message {head.message_id}, which is tried again "
            f"{both(head.due_at, now)}; `channels skip` lets the others start."
        )
    if before := _before(store, message, name, now):
        more = "More than " if before > MOST_WAITING else ""
        yield f"{more}{min(before, MOST_WAITING):,} of {whose} wait before it."


def _head(store: Store, message: Message, name: str) -> ChannelMessage | None:
    """The message that blocks its channel until it has ended; None: none, or it itself."""
    if not _is_strict(message.queue, message.kind):
        return None
    id_ = channel_id(message.queue, message.kind, name)
    head = Places(store, store.now()).heads([id_]).first()
    return None if head is None or head.message_id == message.pk else head


def _is_strict(queue: str, kind: str) -> bool:
    return rules_here(queue, kind).is_strict


def waits_for_limit(store: Store, message: Message, name: str, now: datetime) -> bool:
    """Whether a due message with this channel waits for a limit, or is in a channel that does: it is not late then."""
    if any(one.is_in_the_way for one in limits_now(store, message.queue, message.kind, name, now)):
        return True
    head = _head(store, message, name)
    return head is not None and head.due_at > now


def _before(store: Store, message: Message, name: str, now: datetime) -> int:
    """How many messages of its channel are due and come before it."""
    due = ChannelMessage.objects.using(store.alias).filter(
        channel_id=channel_id(message.queue, message.kind, name), lease_token=0, due_at__lte=now
    )
    urgency, at = -message.priority, message.scheduled_at
    same = Q(urgency=urgency)
    before = due.filter(
        Q(urgency__lt=urgency) | same & Q(due_at__lt=at) | same & Q(due_at=at, message_id__lt=message.pk)
    )
    return count_live(before.order_by("urgency", "due_at", "message_id"), MOST_WAITING)


def terms_of(limit: Limit) -> str:
    """A limit in words; "-": it limits nothing."""
    said = []
    if limit.concurrency:
        said.append(_("%s at once") % grouped(limit.concurrency))
    if limit.rate is not None:
        terms = {"count": grouped(limit.rate.count), "span": span(limit.rate.per)}
        shown = _("%(count)s in each window of %(span)s") if limit.rate.window else _("%(count)s in %(span)s")
        said.append(shown % terms)
    if limit.size is not None:
        said.append(_("size %s") % grouped(limit.size))
    if limit.share is not None:
        said.append(_("share %s") % grouped(limit.share))
    if isinstance(limit.weight, int | float) and limit.weight != 1:
        said.append(_("weight %s") % f"{limit.weight:g}")
    if limit.is_strict:
        said.append(_("in order"))
    return ", ".join(said) or "-"
