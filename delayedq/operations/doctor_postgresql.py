"""What the doctor asks of PostgreSQL alone: see `doctor`."""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING

from django.apps import apps
from django.db import connections
from django.template.defaultfilters import filesizeformat
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from delayedq.operations.diagnosis import HIDDEN, STANDBY, Diagnosis
from delayedq.operations.wording import grouped
from delayedq.store.postgresql.inspection import Inspection
from delayedq.store.postgresql.inspection_sql import LEAVE_IT_ON, LEAVE_ROOM

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from delayedq.store.base import Store

    type Check = Callable[[Store], Iterator[Diagnosis]]

#: A transaction that is older than this many seconds pins vacuum.
PINNED = 300.0
#: Of at least so many updates, at least this part should be heap-only.
UPDATES, HEAP_ONLY = 1_000, 0.5
#: So many dead rows, and so many times the live ones, wait for vacuum.
DEAD, DEAD_TIMES = 20_000, 5
#: Half of each page of the live table is left free for claims.
FILLFACTOR = 50
#: A table or an index of so many bytes, and so many times what its rows need, is bloated.
BLOATED, BLOATED_TIMES = 256 * 2**20, 5


def on_postgresql(check: Callable[[Inspection], Iterator[Diagnosis]]) -> Check:
    @wraps(check)
    def checked(store: Store) -> Iterator[Diagnosis]:
        if connections[store.alias].vendor == "postgresql":
            yield from check(Inspection(store.database))

    return checked


@on_postgresql
def standby(inspection: Inspection) -> Iterator[Diagnosis]:
    if inspection.is_standby():
        said = _("The database %(alias)s is a standby: it can be read, and no worker can claim from it.")
        cure = _("Put the address of the primary into DATABASES, and run the doctor there.")
        yield Diagnosis(STANDBY, said % {"alias": repr(inspection.alias)}, cure)


@on_postgresql
def pooler(inspection: Inspection) -> Iterator[Diagnosis]:
    """Transactions of one connection run in several sessions, and Django is not told so."""
    options = connections[inspection.alias].settings_dict
    if options.get("DISABLE_SERVER_SIDE_CURSORS") or not inspection.shares_sessions():
        return
    said = _("A pooler in transaction mode is in between: server-side cursors of Django's .iterator() break.")
    yield Diagnosis("pooler", said, f"DATABASES[{inspection.alias!r}]['DISABLE_SERVER_SIDE_CURSORS'] = True")


@on_postgresql
def transactions_that_pin_vacuum(inspection: Inspection) -> Iterator[Diagnosis]:
    for one in inspection.pinning(PINNED):
        about = {"user": one.user, "pid": one.pid, "state": one.state, "seconds": grouped(one.seconds)}
        said = _("A transaction of %(user)s (pid %(pid)s, %(state)s) is %(seconds)s s old: it keeps dead rows.") % about
        cure = f"SELECT pg_terminate_backend({one.pid}); set idle_in_transaction_session_timeout."
        yield Diagnosis("pinned vacuum", said, cure)
    if hidden := inspection.hidden_sessions():
        said = ngettext(
            "How long the transactions of %(number)s session of other users last could not be checked.",
            "How long the transactions of %(number)s sessions of other users last could not be checked.",
            hidden,
        )
        yield Diagnosis(HIDDEN, said % {"number": hidden}, f"GRANT pg_read_all_stats TO {inspection.user()}")


@on_postgresql
def invalid_indexes(inspection: Inspection) -> Iterator[Diagnosis]:
    for name in inspection.invalid_indexes(_tables()):
        said = _("The index %(name)s is invalid: it is written, and no statement uses it.") % {"name": name}
        yield Diagnosis("invalid index", said, f"REINDEX INDEX CONCURRENTLY {name}")


@on_postgresql
def storage(inspection: Inspection) -> Iterator[Diagnosis]:
    table = inspection.table()
    fillfactor = int(table.option("fillfactor") or 100)
    if fillfactor > FILLFACTOR:
        said = _("delayedq_message has a fillfactor of %(fillfactor)s: claims find no room for a heap-only update.")
        yield Diagnosis("fillfactor", said % {"fillfactor": fillfactor}, LEAVE_ROOM)
    if not table.autovacuum or table.option("autovacuum_enabled") in {"false", "off", "0"}:
        said = _("Autovacuum is off for delayedq_message: dead rows stay, and each scan reads them.")
        cure = _("%(statement)s; and autovacuum = on in the server.")
        yield Diagnosis("autovacuum", said, cure % {"statement": LEAVE_IT_ON})
    if table.updated >= UPDATES and table.heap_only < HEAP_ONLY * table.updated:
        percent = round(100 * table.heap_only / table.updated)
        said = _("Only %(percent)s %% of the updates of delayedq_message are heap-only.") % {"percent": percent}
        cure = _("Look for an index of yours on a column that claims write, and at the fillfactor.")
        yield Diagnosis("heap-only updates", said, cure)
    if table.dead > max(DEAD, DEAD_TIMES * table.live):
        about = {"dead": grouped(table.dead), "live": grouped(table.live)}
        said = _("delayedq_message has %(dead)s dead rows beside %(live)s: autovacuum falls behind.") % about
        cure = _("VACUUM delayedq_message; end what pins it; look at autovacuum_max_workers.")
        yield Diagnosis("dead rows", said, cure)


@on_postgresql
def bloat(inspection: Inspection) -> Iterator[Diagnosis]:
    """Of our tables and their indexes, and of no other: space that rows had which are gone, and vacuum can't return."""
    for one in inspection.oversized(_tables(), BLOATED, BLOATED_TIMES):
        about = {"name": one.name, "size": filesizeformat(one.size), "needed": filesizeformat(one.needed)}
        said = _("%(name)s is bloated: it takes %(size)s for what needs about %(needed)s.") % about
        # An index can be rebuilt while all goes on. A table can't.
        rebuilt = f"REINDEX INDEX CONCURRENTLY {one.name}"
        whole = _("%(statement)s while workers are stopped, or pg_repack while they go on.")
        cure = rebuilt if one.is_index else whole % {"statement": f"VACUUM (FULL) {one.name}"}
        yield Diagnosis("bloat", said, cure)


def _tables() -> list[str]:
    """Those of delayedq's apps that are installed."""
    ours = (config for config in apps.get_app_configs() if config.name.partition(".")[0] == "delayedq")
    models = (model for config in ours for model in config.get_models())
    return sorted({model._meta.db_table for model in models if not model._meta.proxy and model._meta.managed})  # noqa: SLF001


ON_POSTGRESQL: tuple[Check, ...] = (transactions_that_pin_vacuum, invalid_indexes, storage, bloat)
