"""`manage.py delayedq partition`: the history becomes a table of partitions, one a month, on PostgreSQL."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.core.management.base import CommandError
from django.db import Error
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from delayedq.conf import get_settings
from delayedq.exceptions import CannotPartition
from delayedq.management.telling import add_json, as_json, confirm
from delayedq.operations.wording import grouped
from delayedq.store.protocol import PartitionStep

if TYPE_CHECKING:
    from argparse import ArgumentParser
    from collections.abc import Iterator

    from django.core.management.base import OutputWrapper

    from delayedq.store.base import Store
    from delayedq.store.protocol import PartitionChange

SAID = {
    PartitionStep.BEGUN: gettext_lazy("%(table)s: its rows are being checked. Workers go on meanwhile."),
    PartitionStep.BEGUN_AGAIN: gettext_lazy("%(table)s: what was begun weeks ago was taken back, and begins again."),
    PartitionStep.CHECKED: gettext_lazy("%(table)s: its rows were checked."),
    PartitionStep.PARTITIONED: gettext_lazy("%(table)s is partitioned; all its rows are in its first partition."),
    PartitionStep.CREATED: gettext_lazy("%(table)s was made."),
    PartitionStep.DROPPED: gettext_lazy("%(table)s was dropped."),
    PartitionStep.UNITED: gettext_lazy("%(table)s is one table again."),
}


def add_partition(parser: ArgumentParser) -> None:
    parser.add_argument("--undo", action="store_true", help="Make the history one table again. Messages wait for that.")
    parser.add_argument("--yes", action="store_true", help="Do not ask.")
    add_json(parser)


def run_partition(store: Store, out: OutputWrapper, err: OutputWrapper, given: dict[str, Any]) -> None:
    """Say each step when it is done; as JSON, all at the end. Raises CommandError where it can't be done."""
    done: list[PartitionChange] = []
    try:
        for change in (
            _undone(store, err, given) if given["undo"] else store.partition_history(get_settings().RETENTION)
        ):
            done.append(change)
            if not given["json"]:
                out.write(SAID[change.step] % {"table": change.name})
                out.flush()
    except CannotPartition as error:
        raise CommandError(str(error)) from error
    except Error as error:
        said = _("It went no further: %(error)s. Nothing is lost; run it again.")
        raise CommandError(said % {"error": str(error).strip()}) from error
    if given["json"]:
        out.write(as_json([{"step": one.step, "table": one.name} for one in done]))
    elif not done and given["undo"]:
        out.write(_("The history is not in partitions."))
    elif not done:
        out.write(_("The history is partitioned, and no partition is due to be made or dropped."))


def _undone(store: Store, err: OutputWrapper, given: dict[str, Any]) -> Iterator[PartitionChange]:
    rows = store.rows_to_unite()
    if rows is None:
        return
    asked = _("Ends of messages wait while %(rows)s rows are copied. Make the history one table?")
    confirm(asked % {"rows": grouped(rows)}, given, err)
    if (change := store.unite_history()) is not None:
        yield change
