"""The bare message queue: keyed, delayed, leased messages in the project's database. See docs/queue.md.

Start with `delayed.py`: DelayedQueue combines `producer.py` (offers) and `consumer.py` (polls); `envelope.py` is what a
poll returns.
"""

from __future__ import annotations

from delayedq.queue.batch import Batch
from delayedq.queue.browsing import Browsing
from delayedq.queue.delayed import CONFIRMATION, DelayedQueue, ReplyQueue
from delayedq.queue.envelope import UNCHANGED, DeliveryType, Envelope
from delayedq.queue.leases import Acknowledgement, History
from delayedq.queue.producer import BatchedMessage, BatchedReply
from delayedq.queue.reading import Reading
from delayedq.queue.serializers import BYTES, JSON, TEXT, Serializer
from delayedq.queue.topic import Topic

__all__ = [
    "BYTES",
    "CONFIRMATION",
    "JSON",
    "TEXT",
    "UNCHANGED",
    "Acknowledgement",
    "Batch",
    "BatchedMessage",
    "BatchedReply",
    "Browsing",
    "DelayedQueue",
    "DeliveryType",
    "Envelope",
    "History",
    "Reading",
    "ReplyQueue",
    "Serializer",
    "Topic",
]
