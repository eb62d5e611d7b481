"""A desk task whose handler decides at random, in a process that is killed at the worst moments."""

from __future__ import annotations

import json
import os
import random
import signal
from datetime import timedelta
from functools import partial
from pathlib import Path

from django.db import transaction
from django.db.models.signals import post_save
from django.dispatch import receiver

from delayedq.desk import desk_task
from delayedq.desk.models import Item

#: When the process is killed, by the argument of the message.
MOMENTS = ("never", "in the handler", "before the decision is committed", "before the message ends")


@desk_task(mode="automatic", max_attempts=1000, backoff=timedelta())
def decide(moment, folder):
    """Each call decides something else."""
    if moment == MOMENTS[1]:
        die(moment, folder)
    return {"lot": random.randrange(10**9), "moment": moment, "folder": folder}


@receiver(post_save, sender=Item)
def saved(instance, **_):
    """Within the transaction that stores the decision."""
    if instance.kind != decide.module_path or instance.proposal is None:
        return
    proposal = json.loads(instance.proposal)
    act = partial(die, proposal["moment"], proposal["folder"])
    if proposal["moment"] == MOMENTS[2]:
        act()
    elif proposal["moment"] == MOMENTS[3]:
        transaction.on_commit(act, using=instance._state.db)


def die(moment, folder):
    """Once."""
    marker = Path(folder) / moment
    if not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGKILL)
