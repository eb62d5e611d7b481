"""Temporary queues for replies. Their names contain the time of expiry, so that any process can delete them later."""

from __future__ import annotations

import re
import secrets
from datetime import UTC, datetime
from math import ceil
from typing import TYPE_CHECKING, Any

from delayedq.queue.address import REPLY, QueueAddress
from delayedq.queue.watch import ring_after_commit
from delayedq.store.protocol import BARE

if TYPE_CHECKING:
    from delayedq.queue.leases import Leases
    from delayedq.store.base import Store
    from delayedq.store.protocol import Claimed

_NAME = re.compile(rf"{REPLY}(\d{{12}})~[0-9a-f]{{16}}")


def reply_name(expires_at: datetime) -> str:
    """A unique name. Names sort by the time of expiry."""
    return f"{REPLY}{ceil(expires_at.timestamp()):012d}~{secrets.token_hex(8)}"


def expiry(queue: str) -> datetime | None:
    """When this temporary queue expires (aware datetime); None if the name is not that of one."""
    name = _NAME.match(queue)
    return None if name is None else datetime.fromtimestamp(int(name[1]), UTC)


def send_reply(
    address: QueueAddress[Any], leases: Leases, claimed: Claimed, reply_to: str | None, payload: object
) -> bool:
    """Offer a reply. Returns False if the queue for it has expired. Raises LookupError if `reply_to` is None."""
    if reply_to is None:
        raise LookupError("This message was sent without `reply_to`, so it can't be answered.")
    store, expires_at = leases.store, expiry(reply_to)
    if expires_at is None or expires_at <= store.now():
        return False
    there = QueueAddress(reply_to.partition(BARE)[0], address.serializer, address.max_attempts)
    store.offer(there.offer(claimed.key or str(claimed.id), payload, None))
    ring_after_commit(store.alias, there.queue)
    return True


def sweep(store: Store, moment: datetime) -> None:
    """Delete the messages of expired temporary queues of all processes."""
    from delayedq.models import Message  # queues are made before the models are loaded

    # One range of the due index. Names are parsed again below, as collations sort texts differently.
    bounds = {"queue__gt": REPLY, "queue__lt": f"{REPLY}{int(moment.timestamp()) + 1:012d}"}
    names = Message.objects.using(store.alias).filter(**bounds).order_by().values_list("queue", flat=True).distinct()
    for name in list(names):
        expires_at = expiry(name)
        if expires_at is not None and expires_at <= moment:
            store.drop(name, recorded=False)
