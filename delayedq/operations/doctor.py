"""Find what is wrong with a database, its workers and messages, and the cure, for `manage.py delayedq doctor`.

It connects as a worker would, and reads catalogues, statistics and what a verdict reads. It changes nothing.
"""

from __future__ import annotations

import json
import socket
import time
from collections import Counter
from concurrent.futures import Future
from datetime import UTC, datetime, timedelta
from functools import wraps
from threading import Thread
from typing import TYPE_CHECKING, NamedTuple

from django.apps import apps
from django.db import Error, ProgrammingError, connections, transaction
from django.db.migrations.executor import MigrationExecutor
from django.template.defaultfilters import filesizeformat
from django.utils import translation
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from delayedq.conf import get_settings
from delayedq.core.serialization import load_call
from delayedq.cron.beat import PRESENCE
from delayedq.exceptions import CannotRun
from delayedq.flows.ending import load_calls
from delayedq.flows.rules import StepState
from delayedq.limits.lateness import waits
from delayedq.models import CronSettings, Flow, FlowStep, Message
from delayedq.operations.archived import archive_troubles, look_into_archives
from delayedq.operations.rules import Rule
from delayedq.operations.verdict import verdict
from delayedq.operations.wording import grouped, span
from delayedq.operations.workers import live_workers
from delayedq.steps.rules import SLEEP, base_name
from delayedq.steps.store import steps_in_flight
from delayedq.store.claim_plan import claim_plan
from delayedq.store.database import cure, missing_tables
from delayedq.store.postgresql.inspection import LEAVE_IT_ON, LEAVE_ROOM, Inspection
from delayedq.store.postgresql.partitions import dropped_rule, state_of
from delayedq.store.protocol import BARE, ClaimRequest
from delayedq.tasks import parameters_of, registered, task_at

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from delayedq.store.base import Store
    from delayedq.store.protocol import Offer

    type Check = Callable[[Store], Iterator[Diagnosis]]

# What the doctor finds.


DATABASE, STANDBY, UNCHECKED, HIDDEN = "database", "standby", "unchecked", "hidden sessions"

#: There are no tables; some migrations of them are pending.
NO_TABLES, MIGRATIONS = "no tables", "migrations"

#: After these there is nothing more to ask.
FINAL = {DATABASE, STANDBY, NO_TABLES}


class Diagnosis(NamedTuple):
    """`condition`: a word for programs, which does not change. `cure`: what to do; "" if it says so itself."""

    condition: str
    sentence: str
    cure: str = ""


# What the doctor knows of live messages, schedules and archives: see `doctor`.


#: Workers write that they have their settings at least this many times in a grace period.
BEATS = 10

#: Of the live messages, so many of the oldest are looked at, and as many of the newest.
LOOK = 2_000

#: At most so many unknown tasks are named.
MOST = 20


def unknown_tasks(store: Store) -> Iterator[Diagnosis]:
    """Tasks of live messages that this version does not know. `check-pending` reads all messages, and arguments too."""
    ids = Message.objects.using(store.alias)
    ends = [ids.order_by(order).values_list("id", "queue", "kind")[:LOOK] for order in ("id", "-id")]
    kinds = Counter(kind for _id, queue, kind in {row for rows in ends for row in rows} if BARE not in queue)
    for kind, number in sorted(_unknown(kinds).items())[:MOST]:
        said = ngettext(
            "At least %(number)s live message is of %(task)s, a task that is unknown here.",
            "At least %(number)s live messages are of %(task)s, a task that is unknown here.",
            number,
        )
        cure = _(
            "Add its app to INSTALLED_APPS, deploy what has it, or give the task that took its place "
            "aliases=[%(task)s]; see check-pending."
        )
        yield Diagnosis("unknown task", said % {"number": number, "task": kind}, cure % {"task": repr(kind)})


def _unknown(kinds: Counter[str]) -> dict[str, int]:
    found = {}
    for kind, number in kinds.items():
        try:
            task_at(kind)
        except CannotRun:
            found[kind] = number
    return found


def schedules(store: Store) -> Iterator[Diagnosis]:
    """`CRON` that differs between workers which live: in a deploy for minutes, else by mistake."""
    fresh = store.now() - get_settings().CRON_GRACE / BEATS
    rows = CronSettings.objects.using(store.alias).filter(seen_at__gt=fresh).exclude(digest=PRESENCE)
    sets: list[dict[str, str]] = [json.loads(content) for content in rows.values_list("content", flat=True)]
    names = {name for one in sets for name in one}
    differing = sorted(name for name in names if len({one.get(name) for one in sets}) > 1)
    if differing:
        said = _("DELAYEDQ['CRON'] differs between workers that live: %(names)s.") % {"names": ", ".join(differing)}
        cure = _("Deploy the same settings to all workers, or give some --no-cron.")
        yield Diagnosis("schedules differ", said, cure)


def archives(store: Store) -> Iterator[Diagnosis]:
    for trouble in archive_troubles(store):
        yield Diagnosis(trouble.condition, trouble.sentence, trouble.cure)


def lake(store: Store) -> Iterator[Diagnosis]:
    """A lake that is set, and that this process can't read."""
    for reason in look_into_archives(store):
        said = _("The lake can't be read: %(reason)s") % {"reason": reason}
        yield Diagnosis("lake", said, _("Make DELAYEDQ['LAKE'] reachable from here; nothing is archived until then."))


# What the doctor asks of PostgreSQL alone: see `doctor`.


#: A transaction that is older than this many seconds pins vacuum.
PINNED = 300.0

#: Of at least so many updates, at least this part should be heap-only.
UPDATES, HEAP_ONLY = 1_000, 0.5

#: So many dead rows, and so many times the live ones, wait for vacuum.
DEAD, DEAD_TIMES = 20_000, 5

#: Half of each page of the live table is left free for claims.
FILLFACTOR = 50

#: Lease keepers have so long to make the partition that is due.
A_DAY = timedelta(days=1)

#: A table or an index, with all its partitions, of so many bytes, and so many times what its rows need, is bloated.
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


def partitions(store: Store) -> Iterator[Diagnosis]:
    """What lease keepers should have done with a history in partitions, or somebody has not ended."""
    if connections[store.alias].vendor != "postgresql" or (state := state_of(store.database)) is None:
        return
    if state.rule is not None:
        about = {"constraint": state.rule, "table": state.ruled, "day": f"{state.boundary:%Y-%m-%d}"}
        said = _("%(table)s has the constraint %(constraint)s: from %(day)s (UTC) on it refuses rows that end there.")
        cure = _("If no process partitions the history now: %(statement)s")
        yield Diagnosis("left constraint", said % about, cure % {"statement": dropped_rule(state)})
    now = store.now()
    if late := [f"{one:%Y-%m}" for one in state.missing(now - A_DAY) if one > now]:
        said = _("The history has no partition for %(months)s: its rows will be deleted one by one.")
        cure = _("Run %(command)s as the user who owns the table, once a day; look at the warnings of lease keepers.")
        about = {"months": ", ".join(late)}
        yield Diagnosis("missing partition", said % about, cure % {"command": "manage.py delayedq partition"})


def _tables() -> list[str]:
    """Those of delayedq's apps that are installed."""
    ours = (config for config in apps.get_app_configs() if config.name.partition(".")[0] == "delayedq")
    models = (model for config in ours for model in config.get_models())
    return sorted({model._meta.db_table for model in models if not model._meta.proxy and model._meta.managed})  # noqa: SLF001


ON_POSTGRESQL: tuple[Check, ...] = (transactions_that_pin_vacuum, invalid_indexes, storage, bloat, partitions)


# Whether one database and its workers do their work, for `manage.py delayedq health`.


#: Of a claim that is rolled back.
LEASE = timedelta(seconds=10)


class HealthCheck(NamedTuple):
    """`passed`, and a sentence that says of what, or what is wrong."""

    passed: bool
    sentence: str


def health(store: Store, *, oldest_due: timedelta | None = None, workers_here: bool = False) -> list[HealthCheck]:
    """What was checked; after a database that does not answer, nothing else."""
    try:
        return list(_checks(store, oldest_due, workers_here=workers_here))
    except Error as error:
        about = {"alias": repr(store.alias), "error": str(error).strip()}
        return [HealthCheck(False, _("The database %(alias)s does not let a worker claim: %(error)s") % about)]


def health_within(
    timeout: timedelta, store: Store, *, oldest_due: timedelta | None = None, workers_here: bool = False
) -> list[HealthCheck]:
    """The same, or what says that it took longer.

    In a thread of its own: nothing else ends the wait for a server that accepts a connection and never answers.
    """
    found: Future[list[HealthCheck]] = Future()
    language = translation.get_language()

    def ask() -> None:
        try:
            with translation.override(language):
                found.set_result(health(store, oldest_due=oldest_due, workers_here=workers_here))
        except Exception as error:  # noqa: BLE001 - it is raised below
            found.set_exception(error)
        finally:
            connections.close_all()

    Thread(target=ask, daemon=True).start()
    try:
        return found.result(timeout.total_seconds())
    except TimeoutError:
        about = {"alias": repr(store.alias), "span": span(timeout)}
        return [HealthCheck(False, _("The database %(alias)s did not answer within %(span)s.") % about)]


def _checks(store: Store, oldest_due: timedelta | None, *, workers_here: bool) -> Iterator[HealthCheck]:
    if missing := missing_tables(store.alias):
        raise ProgrammingError(f"it has no table {min(missing)}; {cure(store.alias)}")
    try_claim(store)
    yield HealthCheck(True, _("A worker could claim from the database %(alias)s.") % {"alias": repr(store.alias)})
    if workers_here:
        yield _workers_here(store)
    if oldest_due is not None:
        yield _in_time(store, oldest_due)


def try_claim(store: Store) -> None:
    """Claim what is due first, and roll it back. Raises django.db.Error, also if the database is read-only."""
    with transaction.atomic(using=store.alias):
        store.claim(ClaimRequest(store.lanes()[:1], 1, LEASE, "delayedq health"))
        Message.objects.using(store.alias).filter(pk=0).update(attempt=0)  # no row, and yet a write
        transaction.set_rollback(True, using=store.alias)


def _workers_here(store: Store) -> HealthCheck:
    host = socket.gethostname()
    names = [worker.name for worker in live_workers(store, store.now()) if worker.host == host]
    if names:
        return HealthCheck(True, _("These workers of this host live: %(names)s.") % {"names": ", ".join(names)})
    said = _("No worker of this host (%(host)s) has a fresh heartbeat. Start run_workers, or look at its log.")
    return HealthCheck(False, said % {"host": host})


def _in_time(store: Store, bound: timedelta) -> HealthCheck:
    heads = [head for head in store.scan() if BARE not in head.queue and head.due_in < 0]
    found = waits(store, heads, store.now(), bound.total_seconds())
    late = {queue: wait.late for queue, wait in found.items() if wait.late > bound.total_seconds()}
    if not late:
        limited = max((wait.limited for wait in found.values()), default=0.0)
        said = _("No message has been due for longer than %(span)s.") % {"span": span(bound)}
        waiting = {"span": span(timedelta(seconds=limited))}
        more = _("Some wait for a limit, the first for %(span)s.") % waiting if limited else ""
        return HealthCheck(True, " ".join(filter(None, [said, more])))
    queue = max(late, key=lambda name: late[name])
    about = {"queue": queue, "span": span(timedelta(seconds=late[queue]))}
    return HealthCheck(False, _("The first message of %(queue)s has been due for %(span)s.") % about)


# Doctor


#: A clock may differ from that of the database by so much.
SKEW = timedelta(seconds=2)

#: Seconds that a listener has to hear its own notification.
PROOF = 5.0


def diagnose(store: Store) -> list[Diagnosis]:
    """All that is wrong, what keeps messages from running first; of a database that no worker can use only that.

    A check that fails itself, say for want of a permission, is a diagnosis too.
    """
    found: list[Diagnosis] = []
    for check in CHECKS:
        try:
            found += list(check(store))
        except Exception as error:  # noqa: BLE001 - what a check meets is told, whatever it is
            found.append(_failed(store, check.__name__, error))
        if found and found[-1].condition in FINAL:
            break
    return found


def _failed(store: Store, name: str, error: Exception) -> Diagnosis:
    """Of a check: the database that does not answer, or else what could not be asked of it."""
    connections[store.alias].close()
    try:
        connections[store.alias].ensure_connection()
    except Error as answer:
        return refused(store, answer)
    said = str(error).strip() or type(error).__name__
    about = {"check": name.replace("_", " "), "error": said if isinstance(error, Error) else f"{error!r}"}
    sentence = _("This could not be checked: %(check)s. The answer was: %(error)s") % about
    return Diagnosis(UNCHECKED, sentence, _("Look at the rights of the user that DATABASES names; then ask again."))


def refused(store: Store, error: Error) -> Diagnosis:
    """That of a database which does not answer, or not to this user."""
    about = {"alias": repr(store.alias), "error": str(error).strip()}
    sentence = _("The database %(alias)s refuses what a worker does: %(error)s") % about
    return Diagnosis(DATABASE, sentence, _("Look at the server, the address in DATABASES, and the rights of its user."))


def migrations(store: Store) -> Iterator[Diagnosis]:
    executor = MigrationExecutor(connections[store.alias])
    leaves = [node for node in executor.loader.graph.leaf_nodes() if apps.get_app_config(node[0]).name.startswith(OURS)]
    if pending := [f"{migration.app_label}.{migration.name}" for migration, _ in executor.migration_plan(leaves)]:
        said = _("Migrations are pending: %(names)s.") % {"names": ", ".join(pending)}
        is_empty = "delayedq_message" not in connections[store.alias].introspection.table_names()
        yield Diagnosis(NO_TABLES if is_empty else MIGRATIONS, said, f"manage.py migrate --database {store.alias}")


def indexes(store: Store) -> Iterator[Diagnosis]:
    """Those of the models that are not there. Databases that have no partial index lack one on purpose."""
    connection = connections[store.alias]
    for model in apps.get_app_config("delayedq").get_models():
        options = model._meta  # noqa: SLF001
        wanted = {index.name for index in options.indexes if connection.features.supports_partial_indexes}
        for name in sorted(wanted - store.database.constraints(options.db_table)):
            about = {"name": name, "table": options.db_table}
            said = _("The index %(name)s of %(table)s is missing: statements read the whole table.") % about
            cure = _("Create it as manage.py sqlmigrate delayedq shows: %(name)s") % about
            yield Diagnosis("missing index", said, cure)


def claims(store: Store) -> Iterator[Diagnosis]:
    """Whether a worker could claim."""
    try:
        try_claim(store)
    except Error as error:
        connections[store.alias].close()
        yield refused(store, error)


def plan_of_the_claim(store: Store) -> Iterator[Diagnosis]:
    """A long table whose claims do not go by the due index, as the planner would carry them out now."""
    plan = claim_plan(store)
    if plan is None or plan.goes_by_its_index or not plan.is_long:
        return
    said = _("A claim does not use the index delayedq_due, but this: %(plan)s.") % {"plan": ", ".join(plan.steps)}
    cure = _(
        "Is the index there and valid? Else ANALYZE delayedq_message, and look for planner settings (enable_indexscan,"
        " random_page_cost) of the server, the database or the user."
    )
    yield Diagnosis("plan of the claim", said, cure)


def clocks(store: Store) -> Iterator[Diagnosis]:
    """Leases and due times use the database's clock; `schedule_in` adds to that of the host that calls it."""
    before = datetime.now(UTC)
    there = store.now()
    skew = max(before - there, there - datetime.now(UTC))
    if skew > SKEW:
        about = {"seconds": grouped(skew.total_seconds(), 1), "alias": repr(store.alias)}
        said = _("The clock of this host differs by %(seconds)s s from that of the database %(alias)s.") % about
        cure = _("Synchronise both by NTP: schedule_in() and latencies use the host's clock.")
        yield Diagnosis("clock skew", said, cure)


def listener(store: Store) -> Iterator[Diagnosis]:
    cure = _("Set DELAYEDQ['LISTENER_DSN'] to the address of PostgreSQL itself.")
    try:
        listening = store.listener()
    except Error as error:
        said = _("No listener can connect: %(error)s") % {"error": str(error).strip()}
        yield Diagnosis("deaf listener", said, cure)
        return
    try:
        listening.begin_proof()
        give_up_at = time.monotonic() + PROOF
        while not listening.proved and time.monotonic() < give_up_at:
            listening.heard()
            time.sleep(0.05)
        if not listening.proved:
            said = _(
                "A listener is deaf: it did not hear its own notification, as behind a pooler in transaction mode."
            )
            yield Diagnosis("deaf listener", said, cure)
    finally:
        listening.close()


def findings(store: Store) -> Iterator[Diagnosis]:
    """What the dashboard says: queues nobody serves, late and paused ones, lost leases, unknown tasks, workers."""
    for finding in verdict(store):
        if finding.rule is Rule.DATABASE:
            raise Error("; ".join(finding.evidence))
        if finding.rule is Rule.ARCHIVE:
            continue  # `archives` tells of it, each by a condition of its own
        cure = finding.action.command or finding.action.label if finding.action else ""
        yield Diagnosis(str(finding.rule), " ".join([finding.sentence, *finding.evidence]), cure)


OURS = "delayedq"

CHECKS: tuple[Callable[[Store], Iterator[Diagnosis]], ...] = (
    *(standby, migrations, indexes, claims, findings, unknown_tasks),
    *(plan_of_the_claim, clocks, pooler, listener, *ON_POSTGRESQL),
    *(schedules, archives, lake),
)


# Whether this version of the code can run what waits, for `manage.py delayedq check-pending`: a gate for deploys.


#: Rows that are read at once.
ROWS = 1_000


class Unrunnable(NamedTuple):
    """Messages of one task that fail alike. `id`: of the first of them.

    is_later: they are calls of flows that wait for other steps, and are no messages yet; `id` is that of the flow.
    """

    kind: str
    reason: str
    id: int
    number: int
    is_later: bool = False


def check_pending(store: Store) -> tuple[int, list[Unrunnable]]:
    """How many messages of tasks wait, and those that this version can't run.

    Their task is unknown, does not take their arguments, or declares its steps without one that they have recorded.
    Reads all of them, and what they refer to. Also reads the calls of flows that are not messages yet.
    """
    checked = 0
    found: dict[tuple[str, str, bool], list[int]] = {}
    rows = Message.objects.using(store.alias).order_by("id").values_list("id", "queue", "kind", "payload")
    for id_, queue, kind, payload in rows.iterator(chunk_size=ROWS):
        if BARE in queue:
            continue
        checked += 1
        if reason := _reason(kind, payload):
            found.setdefault((kind, reason, False), [id_, 0])[1] += 1
    for flow_id, offer in _later(store):
        if reason := _reason(offer.kind, offer.payload, is_later=True):
            found.setdefault((offer.kind, reason, True), [flow_id, 0])[1] += 1
    unrunnable = [
        *(Unrunnable(kind, reason, id_, number, later) for (kind, reason, later), (id_, number) in found.items()),
        *(Unrunnable(kind, reason, *counted) for (kind, reason), counted in _unknown_steps(store).items()),
    ]
    return checked, sorted(unrunnable)


def _later(store: Store) -> Iterator[tuple[int, Offer]]:
    """The calls of open flows that wait for others, each with the id of its flow."""
    flows = Flow.objects.using(store.alias).filter(ended_at=None).order_by("id")
    steps = FlowStep.objects.using(store.alias).filter(state=StepState.WAITING, flow_id__in=flows.values("id"))
    for rows in (steps.order_by("id").values_list("flow_id", "calls"), flows.values_list("id", "on_failure")):
        for flow_id, calls in rows.iterator(chunk_size=ROWS):
            yield from ((flow_id, offer) for offer in load_calls(calls or "[]"))


def _unknown_steps(store: Store) -> dict[tuple[str, str], tuple[int, int]]:
    """By task and reason, the first message and the number of those that have recorded a step that is not declared."""
    ids: dict[tuple[str, str], dict[int, None]] = {}
    for id_, kind, name in steps_in_flight(store):
        task, step = registered.get(kind), base_name(name)
        if task is None or task.steps is None or step == SLEEP or step in task.steps:
            continue
        reason = f"They have recorded the step {step!r}; the steps of the task are {', '.join(sorted(task.steps))}."
        ids.setdefault((kind, reason), {})[id_] = None
    return {about: (next(iter(these)), len(these)) for about, these in ids.items()}


def _reason(kind: str, payload: str, *, is_later: bool = False) -> str:
    """Why such a message can't run; "" if it can. is_later: what its arguments refer to may not be there yet."""
    try:
        task = task_at(kind)
        args, kwargs = _unread(payload) if is_later else load_call(payload)
        parameters_of(task).bind(*args, **kwargs)
    except (CannotRun, TypeError) as error:
        return str(error)
    return ""


def _unread(payload: str) -> tuple[list[object], dict[str, object]]:
    """The arguments as they are stored: to know whether they fit, their values are not needed."""
    call = json.loads(payload)
    return call.get("args", []), call.get("kwargs", {})
