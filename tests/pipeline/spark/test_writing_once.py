"""The option `once`: what a load has offered, no other load with it offers again."""

from __future__ import annotations

from delayedq.models import Message
from delayedq.pipeline.models import Load, LoadStaging, ReplayedMessage
from delayedq.pipeline.spark.schema import OFFERS
from delayedq.pipeline.spark.writing import MessageWriter, Staged, load_options


def load(address, load_id, keys):
    """Commit what one task has staged; returns how many messages are new, and how many were passed over."""
    writer = MessageWriter(load_options({"address": address.reference, "load_id": load_id, "once": "true"}), OFFERS)
    writer.plan()
    token = len(load_id)
    for key in keys:
        LoadStaging.objects.create(
            load_id=load_id, partition_id=0, attempt=token, priority=0, max_attempts=1, queue="default", kind="k",
            key=key, payload="{}",
        )  # fmt: skip
    writer.commit([Staged(token, len(keys))])
    return Load.objects.values_list("inserted", "duplicates").get(load_id=load_id)


def test_a_key_that_a_load_has_offered_is_passed_over_by_the_next_also_when_its_message_has_ended(store, address):
    assert load(address, "1", ["a", "A"]) == (2, 0)
    Message.objects.all().delete()

    assert load(address, "two", ["a", "A", "b"]) == (1, 2)

    assert Message.objects.get().key == "b"
    assert dict(ReplayedMessage.objects.values_list("key", "load_id")) == {"a": "1", "A": "1", "b": "two"}
    assert not LoadStaging.objects.exists()
