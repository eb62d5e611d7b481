"""The bare message queue: keyed, delayed, leased messages in the project's database. See docs/queue.md.

Start with `delayed.py`, which puts `producer.py` (ways in) and `consumer.py` (ways out) together; `envelope.py` is what
a poll hands out.
"""

from __future__ import annotations

from delayedq.queue.batch import Batch
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
    "DelayedQueue",
    "DeliveryType",
    "Envelope",
    "History",
    "Reading",
    "ReplyQueue",
    "Serializer",
    "Topic",
]
