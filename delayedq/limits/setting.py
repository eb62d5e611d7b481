"""Limits that are set while everything runs: they hold from the caller's commit on, also for what waits already.

limits.set("webhooks", concurrency=10)                        # a queue
limits.set("shop.tasks.deliver", channel="acme", rate=Rate(1, per=timedelta(seconds=1)))
limits.clear("webhooks")                                      # what the code says holds again
limits.pause("shop.tasks.deliver", channel="acme")            # until limits.resume(...)
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from delayedq.core.bounds import NAME_LENGTH, is_storable
from delayedq.exceptions import InvalidLimit
from delayedq.limits.channels import tell_channel
from delayedq.limits.declared import limits_in, lines_up, rules_known, rules_of, sizes_of
from delayedq.limits.requests import ForeignRules, Rules
from delayedq.limits.rules import Limit, Rate, channel_id
from delayedq.store import default_store
from delayedq.store.database import retry_on_deadlock
from delayedq.store.offers import check_channel_name
from delayedq.store.protocol import BARE
from delayedq.tasks import registered

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from django.db.models import QuerySet

    from delayedq.models import ChannelGroup, LimitState
    from delayedq.store.base import Store

__all__ = ["Limit", "Rate", "clear", "holding", "live", "pause", "resume", "rules_for", "set", "skip"]


def set(  # noqa: A001 - limits.set() reads well
    scope: str,
    *,
    channel: str = "",
    concurrency: int | None = None,
    rate: Rate | None = None,
    size: int | None = None,
    weight: float | None = None,
    share: int | None = None,
    store: Store | None = None,
) -> Limit:
    """Put a limit in the place of the defined one of a queue, a task (its path) or a shared limit (its name).

    A bare queue has its stored name, with the type of its payloads: "contacts|json".

    channel: only of this channel, of each task in the queue, or of the task. concurrency, rate, size: as in `Limit`;
    None: no limit. weight, share: those of a channel; None: as they are. If nothing else is given, the rest stays as it
    is, too: as it was set, or else as the code says of each task. store: where the messages are; None: in the default
    database. Part of the caller's transaction.
    Raises InvalidLimit for a wrong value, for a scope whose messages wait in no channel, and for a size where the code
    defines none: offers look for one only there.
    """
    store = store or default_store()
    check_scope(scope, channel)
    if not channel and not (weight is None and share is None):
        raise InvalidLimit(f"weight and share are those of one channel: name one of {scope!r} by channel=.")
    if isinstance(weight, Mapping):
        raise InvalidLimit(f"weight of one channel is a number, not {weight!r}.")
    given = _given({"concurrency": concurrency, "rate": rate, "size": size}, {"weight": weight, "share": share})
    if size is not None:
        _check_sized(scope, channel)
    return _defined(scope, channel).overridden(_set(store, scope, channel, given))


@retry_on_deadlock
def _set(store: Store, scope: str, channel: str, given: dict[str, Any]) -> dict[str, Any]:
    """Store this beside what is set there; returns the whole."""
    with store.database.atomic(savepoint=False):
        definition = _unpaused(_about_to_change(store, scope, channel) or {}) | given
        _keep(store, scope, channel, definition)
        _tell(store, scope, channel)
    return definition


def _given(terms: dict[str, Any], turns: dict[str, Any]) -> dict[str, Any]:
    """What is to be stored of these. Raises InvalidLimit."""
    turns = {name: value for name, value in turns.items() if value is not None}
    is_whole = any(one is not None for one in terms.values()) or not turns
    try:
        limit = Limit(**terms, **turns)
    except ValueError as error:
        raise InvalidLimit(f"{error}.") from None
    names = {*(terms if is_whole else ()), *turns}
    return {name: value for name, value in limit.as_json().items() if name in names}


def _stored(store: Store, scope: str, channel: str, *, lock: bool = False) -> dict[str, Any] | None:
    """What is set live there; None: nothing is. lock: nobody else changes it until the transaction ends."""
    states = _states(store).select_for_update() if lock else _states(store)
    definition = states.filter(scope=scope, channel=channel).values_list("definition", flat=True).first()
    return None if definition is None else json.loads(definition)


def _about_to_change(store: Store, scope: str, channel: str) -> dict[str, Any] | None:
    """The same, locked, also if nothing is set there yet: of two that come first, one waits for the other."""
    _states(store).get_or_create(scope=scope, channel=channel)
    return _stored(store, scope, channel, lock=True)


def _unpaused(stored: dict[str, Any]) -> dict[str, Any]:
    """The same, as it was before a pause."""
    return json.loads(stored["before"] or "{}") if stored.get("paused") else stored


def _keep(store: Store, scope: str, channel: str, definition: dict[str, Any]) -> None:
    stored = {"definition": json.dumps(definition), "share": definition.get("share") if channel else None}
    _states(store).update_or_create(scope=scope, channel=channel, defaults=stored)


def clear(scope: str, *, channel: str = "", store: Store | None = None) -> bool:
    """Take back what `set` has put there; False if it had not. Takes part in the caller's transaction.

    Raises InvalidMessage if it is not a valid name of a channel.
    """
    check_channel_name(channel)
    return _clear(store or default_store(), scope, channel)


@retry_on_deadlock
def _clear(store: Store, scope: str, channel: str) -> bool:
    found = _states(store).filter(scope=scope, channel=channel, definition__isnull=False)
    with store.database.atomic(savepoint=False):
        cleared = bool(found.delete()[0]) if channel else bool(found.update(definition=None))
        if cleared:
            _tell(store, scope, channel)
    return cleared


def pause(scope: str, *, channel: str = "", by: str = "", store: Store | None = None) -> bool:
    """Let no more messages start in a channel, or in all of a scope, until `resume`; False if it is paused already.

    scope, channel: as in `set`. by: who does it, as it is shown. Offers are stored as before, and what runs goes on.
    `set` and `clear` end a pause too. Takes part in the caller's transaction. Raises InvalidLimit.
    """
    store = store or default_store()
    check_scope(scope, channel)
    return _pause(store, scope, channel, by)


@retry_on_deadlock
def _pause(store: Store, scope: str, channel: str, by: str) -> bool:
    with store.database.atomic(savepoint=False):
        before = _about_to_change(store, scope, channel)
        if before is not None and before.get("paused"):
            return False
        kept = None if before is None else json.dumps(before)
        paused = {"paused": {"by": by, "at": store.now().isoformat()}, "before": kept}
        _keep(store, scope, channel, (before or {}) | paused)
        _tell(store, scope, channel)
    return True


def resume(scope: str, *, channel: str = "", store: Store | None = None) -> bool:
    """End a pause: the limit from before it holds again. False if it was not paused.

    Raises InvalidMessage if it is not a valid name of a channel.
    """
    check_channel_name(channel)
    return _resume(store or default_store(), scope, channel)


@retry_on_deadlock
def _resume(store: Store, scope: str, channel: str) -> bool:
    with store.database.atomic(savepoint=False):
        stored = _stored(store, scope, channel, lock=True)
        if stored is None or not stored.get("paused"):
            return False
        if stored["before"] is None:
            return _clear(store, scope, channel)
        _keep(store, scope, channel, _unpaused(stored))
        _tell(store, scope, channel)
    return True


def skip(scope: str, *, channel: str, store: Store | None = None) -> bool:
    """Let the messages behind the one that blocks a channel (`order="strict"`) start before it; False: none does.

    scope: the queue or the task. The message keeps its due time and its attempts. To end it, cancel it. Takes part in
    the caller's transaction. Raises InvalidLimit.
    """
    from delayedq.limits.places import unblock

    store = store or default_store()
    check_scope(scope, channel)
    groups = _groups(store, scope)
    skipped = unblock(store, [channel_id(group.queue, group.kind, channel) for group in groups])
    if skipped:
        for group in groups:
            tell_channel(store, group.queue, group.kind, channel)
        store.notify_after_commit()
    return skipped


def _defined(scope: str, channel: str) -> Limit:
    """What the code says; of a channel of several tasks that say different things, nothing."""
    if channel:
        said = {rules.channel or Limit() for rules in _with_channels(scope)}
        return said.pop() if len(said) == 1 else Limit()
    for task in registered.values():
        scopes = dict(rules_of(task, task.queue_name).scopes) if lines_up(task) else {}
        if scope in scopes:
            return scopes[scope]
    return dict(rules_known(scope).scopes)[scope]


def _with_channels(scope: str) -> Iterator[Rules]:
    """What the code says of a bare queue, of a task with channels, or of those in a queue."""
    if BARE in scope:
        yield rules_known(scope)
    for task in registered.values():
        if task.channel is not None and scope in {task.queue_name, task.module_path}:
            yield rules_of(task, task.queue_name)


def holding(scope: str, channel: str = "", store: Store | None = None) -> Limit:
    """What holds now for a scope, or for a channel of it: what was set live, or else what the code says."""
    return _defined(scope, channel).overridden(_stored(store or default_store(), scope, channel) or {})


def live(store: Store | None = None) -> dict[tuple[str, str], Limit]:
    """The limits that are set now, by scope and channel."""
    stored = definitions(store or default_store())
    return {name: _defined(*name).overridden(definition) for name, definition in stored.items()}


def definitions(store: Store) -> dict[tuple[str, str], dict[str, Any]]:
    """What is stored of them (`Limit.overridden`)."""
    rows = _states(store).filter(definition__isnull=False).values_list("scope", "channel", "definition")
    return {(scope, channel): json.loads(definition or "{}") for scope, channel, definition in rows}


def rules_for(serves: Callable[[str], bool]) -> Callable[[str, str], Rules | None]:
    """The limits by which a worker claims from channels, of the queues it serves and the tasks it knows."""

    def rules(queue: str, kind: str) -> Rules | None:
        task = registered.get(kind)
        if task is None:
            return None
        return rules_of(task, queue) if serves(queue) else ForeignRules(*rules_of(task, queue))

    return rules


def _states(store: Store) -> QuerySet[LimitState]:
    from delayedq.models import LimitState

    return LimitState.objects.using(store.alias).all()


def check_scope(scope: str, channel: str) -> None:
    """Raises InvalidLimit for what has no channels, InvalidMessage for what is no valid name of one."""
    known = sorted({*_scopes()})
    if scope not in known and not _is_bare(scope):
        nearest = get_close_matches(str(scope), known, 1)
        meant = f" Did you mean {nearest[0]!r}?" if nearest else ""
        raise InvalidLimit(
            f"{scope!r} has no channels: it is neither a queue or task with a channel or a limit, nor the name of a "
            f"shared limit; known are {', '.join(known) or 'none'}.{meant} A task gets them by channel= or limit=, or "
            "if DELAYEDQ['LIMITS'] names it or its queue."
        )
    check_channel_name(channel)
    if channel and scope in _shared():
        raise InvalidLimit(f"{scope!r} is a limit that channels share: for one channel, name its queue or its task.")


def _is_bare(scope: object) -> bool:
    return isinstance(scope, str) and BARE in scope and len(scope) <= NAME_LENGTH and is_storable(scope)


def _check_sized(scope: str, channel: str) -> None:
    if channel:
        said = [rules.channel is not None and rules.channel.size is not None for rules in _with_channels(scope)]
        is_sized = bool(said) and all(said)
    else:
        of_tasks = [rules_of(task, task.queue_name) for task in registered.values() if lines_up(task)]
        is_sized = any(one.scope == scope for rules in (*of_tasks, rules_known(scope)) for one in sizes_of(rules))
    if is_sized:
        return
    whose = f"all channels of {scope!r}" if channel else repr(scope)
    raise InvalidLimit(
        f"A size can be set live only where the code defines one, and as far as this process knows, it defines none "
        f"for {whose}: give it a Limit with a size, however large, in limit= or in DELAYEDQ['LIMITS']."
    )


def _shared() -> Iterator[str]:
    return (one.name for task in registered.values() for one in limits_in(task.limit) if one.name is not None)


def _scopes() -> Iterator[str]:
    for task in registered.values():
        if lines_up(task):
            yield from (task.queue_name, task.module_path)
    yield from _shared()


def _tell(store: Store, scope: str, channel: str) -> None:
    """Workers ask again after the commit; the channel itself is looked at then."""
    for group in _groups(store, scope) if channel else ():
        tell_channel(store, group.queue, group.kind, channel)
    store.notify_after_commit()


def _groups(store: Store, scope: str) -> list[ChannelGroup]:
    from delayedq.models import ChannelGroup

    return [one for one in ChannelGroup.objects.using(store.alias) if scope in {one.queue, one.kind}]
