"""Temporary queues for replies. Their names say when they expire, so that whoever comes by can clear them away."""

from __future__ import annotations

import re
import secrets
from datetime import UTC, datetime
from math import ceil
from typing import TYPE_CHECKING, Any

from delayedq.queue.address import REPLY, Address
from delayedq.queue.watch import ring_after_commit
from delayedq.store.protocol import BARE

if TYPE_CHECKING:
    from delayedq.queue.leases import Leases
    from delayedq.store.protocol import Claimed, Store

_NAME = re.compile(rf"{REPLY}(\d{{12}})~[0-9a-f]{{16}}")


def reply_name(expires_at: datetime) -> str:
    """A name that nobody else has. Of two, the one that expires earlier sorts first."""
    return f"{REPLY}{ceil(expires_at.timestamp()):012d}~{secrets.token_hex(8)}"


def expiry(queue: str) -> datetime | None:
    """When this temporary queue expires (aware); None if it is none."""
    name = _NAME.match(queue)
    return None if name is None else datetime.fromtimestamp(int(name[1]), UTC)


def send_reply(address: Address[Any], leases: Leases, claimed: Claimed, reply_to: str | None, payload: object) -> bool:
    """Raises LookupError if no reply was asked for; False if the queue for it has expired."""
    if reply_to is None:
        raise LookupError("Nobody asked for a reply to this message.")
    store, now = leases.store, leases.now()
    expires_at = expiry(reply_to)
    if expires_at is None or expires_at <= (now or store.now()):
        return False
    there = Address(reply_to.partition(BARE)[0], address.serializer, address.max_attempts)
    store.offer(there.offer(claimed.key or str(claimed.id), payload, None), now=now)
    ring_after_commit(store.alias, there.queue)
    return True


def sweep(store: Store, moment: datetime) -> None:
    """Delete what is left in temporary queues that expired, whoever made them."""
    from delayedq.models import Message  # queues are made before the models are loaded

    # One range of the due index; the names are looked at again, for databases sort texts in many ways.
    bounds = {"queue__gt": REPLY, "queue__lt": f"{REPLY}{int(moment.timestamp()) + 1:012d}"}
    names = Message.objects.using(store.alias).filter(**bounds).order_by().values_list("queue", flat=True).distinct()
    for name in list(names):
        expires_at = expiry(name)
        if expires_at is not None and expires_at <= moment:
            store.drop(name, recorded=False)
