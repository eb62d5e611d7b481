"""`manage.py delayedq partition`: the history becomes a table of partitions, one a month, on PostgreSQL."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.core.management.base import CommandError
from django.utils.translation import gettext as _

from delayedq.conf import get_settings
from delayedq.exceptions import CannotPartition
from delayedq.store.protocol import PartitionChange, PartitionStep

if TYPE_CHECKING:
    from django.core.management.base import OutputWrapper

    from delayedq.store.base import Store


def run_partition(store: Store, out: OutputWrapper) -> None:
    """Say each step when it is done. Raises CommandError where it can't be done."""
    is_done = True
    try:
        for change in store.partition_history(get_settings().RETENTION):
            is_done = False
            out.write(_said(change))
            out.flush()
    except CannotPartition as error:
        raise CommandError(str(error)) from error
    if is_done:
        out.write(_("The history is partitioned, and no partition is due to be made or dropped."))


def _said(change: PartitionChange) -> str:
    match change.step:
        case PartitionStep.BEGUN:
            said = _("%(table)s: its rows are being checked. Workers go on meanwhile.")
        case PartitionStep.BEGUN_AGAIN:
            said = _("%(table)s: what was begun weeks ago was taken back, and begins again.")
        case PartitionStep.CHECKED:
            said = _("%(table)s: its rows were checked.")
        case PartitionStep.PARTITIONED:
            said = _("%(table)s is partitioned; all its rows are in its first partition.")
        case PartitionStep.CREATED:
            said = _("%(table)s was made.")
        case PartitionStep.DROPPED:
            said = _("%(table)s was dropped.")
    return said % {"table": change.name}
