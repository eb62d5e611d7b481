"""History in partitions, one a month, as an option on PostgreSQL: what is old goes by dropping a table.

    delayedq_finishedmessage            the parent, with all indexes but the primary key
    delayedq_finishedmessage_before     the table as it was: what ended before the first month that has a partition
    delayedq_finishedmessage_202703     what ended in March 2027 (UTC)
    delayedq_finishedmessage_rest       all else: what stays of months that were dropped, and what was restored

Each partition has a primary key of its own. An id is in at most one of them all the same: it is drawn once, and its row
enters the history in the statement that takes it from the live messages.

Each step is one transaction, which waits at most half a second for a lock, and finds in the catalogue what was done
before it. Whoever is killed leaves nothing but a constraint that rows of the next weeks meet; it is removed in time.

PostgreSQL reads all of the rest under a lock that everybody waits for, to see that it has no row of a month that is
attached, unless a constraint says so. So there is one before, checked under a lock that nobody waits for.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

from django.db import Error, IntegrityError, OperationalError

from delayedq.exceptions import CannotPartition
from delayedq.store.online import patiently
from delayedq.store.protocol import PartitionChange, PartitionStep
from delayedq.store.retention import needed_by_features, unneeded_condition

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from delayedq.store.base import Store
    from delayedq.store.database import Database

logger = logging.getLogger("delayedq")

TABLE = "delayedq_finishedmessage"
BEFORE, REST = f"{TABLE}_before", f"{TABLE}_rest"

#: Months that have their partitions ahead of time.
AHEAD = 2
#: At most so many rows are moved under a lock that ends of messages wait for: some 100 ms.
MOST = 10_000
#: From the conversion to the first month there is at least so long, and its constraint goes so long before that month.
NOTICE, EXPIRES = timedelta(days=7), timedelta(days=3)
#: Bytes of the rest that may be read under a lock that ends of messages wait for: some 150 ms.
READ_LOCKED = 128 * 2**20
#: Rows may be committed so long after they ended: until then, an empty month stays.
LATE = timedelta(days=1)

# What there is ------------------------------------------------------------------------------------------------------
#: One row for each partition, or one. The bounds are written and read in the time zone of the session.
STATE = r"""
SELECT quote_ident(space.nspname), quote_ident(pg_get_userbyid(history.relowner)), history.relkind = 'p',
    rule.conname, rule.convalidated, part.relname,
    substring(bounds.text FROM 'FROM \(''([^'']+)''\)')::timestamptz,
    substring(bounds.text FROM 'TO \(''([^'']+)''\)')::timestamptz
FROM pg_class AS history
JOIN pg_namespace AS space ON space.oid = history.relnamespace
LEFT JOIN pg_class AS rest
    ON rest.relname = 'delayedq_finishedmessage_rest' AND rest.relnamespace = history.relnamespace
LEFT JOIN LATERAL (
    SELECT conname, convalidated FROM pg_constraint
    WHERE conrelid IN (history.oid, rest.oid) AND contype = 'c' AND conname ~ '^delayedq_(until|without)_[0-9]{6}$'
    LIMIT 1
) AS rule ON true
LEFT JOIN pg_inherits AS heir ON heir.inhparent = history.oid
LEFT JOIN pg_class AS part ON part.oid = heir.inhrelid
LEFT JOIN LATERAL (SELECT pg_get_expr(part.relpartbound, part.oid)) AS bounds (text) ON true
WHERE history.oid = to_regclass('delayedq_finishedmessage')
ORDER BY 8
"""

#: What names the table by its number, and would go on with the part of it that was there before.
DEPENDENTS = """
SELECT 'the foreign key ' || conname FROM pg_constraint WHERE contype = 'f' AND confrelid = %(table)s::regclass
UNION ALL
SELECT DISTINCT 'the view ' || rule.ev_class::regclass FROM pg_depend AS needs
JOIN pg_rewrite AS rule ON rule.oid = needs.objid AND needs.classid = 'pg_rewrite'::regclass
WHERE needs.refclassid = 'pg_class'::regclass AND needs.refobjid = %(table)s::regclass
UNION ALL
SELECT 'the trigger ' || tgname FROM pg_trigger WHERE tgrelid = %(table)s::regclass AND NOT tgisinternal
UNION ALL
SELECT 'the policy ' || polname FROM pg_policy WHERE polrelid = %(table)s::regclass
UNION ALL
SELECT 'the publication ' || pubname FROM pg_publication_tables
JOIN pg_namespace ON nspname = schemaname
JOIN pg_class AS published ON relname = tablename AND relnamespace = pg_namespace.oid
WHERE published.oid = %(table)s::regclass
UNION ALL
SELECT 'the unique index ' || indexrelid::regclass FROM pg_index
WHERE indrelid = %(table)s::regclass AND indisunique AND NOT indisprimary
"""

# The conversion -----------------------------------------------------------------------------------------------------
#: How the name of its constraint begins.
UNTIL = "delayedq_until_"
#: So that the table becomes a partition without being read.
ADD_RULE = "ALTER TABLE {table} ADD CONSTRAINT {rule} CHECK (finished_at < '{until}') NOT VALID"
VALIDATE = "ALTER TABLE {table} VALIDATE CONSTRAINT {rule}"
DROP_RULE = "ALTER TABLE {table} DROP CONSTRAINT {rule}"
NO_TIMEOUT = "SET LOCAL statement_timeout = 0"

LOCK = "LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE"
INDEXES = """
SELECT indexrelid::regclass::text, quote_ident(left(relname, 56) || '_before'), pg_get_indexdef(indexrelid)
FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid
WHERE indrelid = %(table)s::regclass AND indisvalid AND NOT indisprimary
"""
RENAME_INDEX = "ALTER INDEX {index} RENAME TO {name}"
RENAME = "ALTER TABLE {table} RENAME TO delayedq_finishedmessage_before"
PARENT = """
CREATE TABLE {table} (LIKE {part} INCLUDING ALL EXCLUDING INDEXES EXCLUDING CONSTRAINTS)
PARTITION BY RANGE (finished_at)
"""
ATTACH_BEFORE = "ALTER TABLE {table} ATTACH PARTITION {part} FOR VALUES FROM (MINVALUE) TO ('{until}')"
ATTACH_REST = "ALTER TABLE {table} ATTACH PARTITION {part} DEFAULT"
OWNER = "ALTER TABLE {table} OWNER TO {owner}"
#: Of the table, and of single columns.
GRANTS = """
SELECT privilege_type || columns, CASE grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(grantee)) END,
    CASE WHEN is_grantable THEN ' WITH GRANT OPTION' ELSE '' END
FROM pg_class, LATERAL (
    SELECT '', relacl
    UNION ALL
    SELECT ' (' || quote_ident(attname) || ')', attacl FROM pg_attribute WHERE attrelid = pg_class.oid AND attnum > 0
) AS given (columns, acl), aclexplode(acl)
WHERE oid = %(table)s::regclass AND grantee <> relowner
"""
REVOKE = "REVOKE ALL ON {table} FROM {grantee}"
GRANT = "GRANT {privilege} ON {table} TO {grantee}{option}"
ANALYZE = "ANALYZE {table}"

# Months -------------------------------------------------------------------------------------------------------------
#: Who maintains partitions: a number of its own among the advisory locks of the database.
ALONE = "SELECT pg_try_advisory_xact_lock(4990113571238847)"
SHORT = "SET LOCAL statement_timeout = '600ms'"

#: That the rest has no row of a month, so that the month is attached without reading it. A keeper checks it in 2 s.
ADD_WITHOUT = (
    "ALTER TABLE {rest} ADD CONSTRAINT {rule} CHECK (finished_at < '{since}' OR finished_at >= '{until}') NOT VALID"
)
CHECK_SHORT = "SET LOCAL statement_timeout = '2s'"
SIZE = "SELECT pg_relation_size(%(rest)s::regclass)"

CREATE = "CREATE TABLE {part} (LIKE {table} INCLUDING ALL, PRIMARY KEY (id))"
IN_MONTH = "finished_at >= '{since}' AND finished_at < '{until}'"
ANY_OF_MONTH = f"SELECT id FROM {{table}} WHERE {IN_MONTH} LIMIT 1"
TOO_MANY = f"SELECT id FROM {{rest}} WHERE {IN_MONTH} ORDER BY finished_at OFFSET %(most)s LIMIT 1"
MOVE = f"WITH moved AS (DELETE FROM {{rest}} WHERE {IN_MONTH} RETURNING *) INSERT INTO {{part}} SELECT * FROM moved"
ATTACH = "ALTER TABLE {table} ATTACH PARTITION {part} FOR VALUES FROM ('{since}') TO ('{until}')"

#: Nobody writes into a month that is to be dropped while what must stay of it is looked for. Readers go on.
LOCK_MONTH = "LOCK TABLE {part} IN SHARE ROW EXCLUSIVE MODE"
LOCK_PARENT = "LOCK TABLE ONLY {table} IN ACCESS EXCLUSIVE MODE"
ANY_ROW = "SELECT id FROM {part} ORDER BY finished_at LIMIT 1"
DETACH = "ALTER TABLE {table} DETACH PARTITION {part}"
KEEP = "INSERT INTO {table} SELECT * FROM {part} WHERE id = ANY(%(ids)s::bigint[])"
DROP = "DROP TABLE {part}"


class Partition(NamedTuple):
    """That of the rows that ended from `since` until before `until`; the rest has neither, what was before no since."""

    name: str
    since: datetime | None
    until: datetime | None


class State(NamedTuple):
    """What the catalogue says of the history. `rule`: the name of the constraint of a conversion that has begun, or of
    a month that is being made.
    """

    schema: str
    owner: str
    is_partitioned: bool
    rule: str | None
    is_valid: bool
    partitions: Sequence[Partition]

    def named(self, name: str) -> str:
        """As statements name a table of the history."""
        return f"{self.schema}.{name}"

    @property
    def table(self) -> str:
        return self.named(TABLE)

    @property
    def boundary(self) -> datetime:
        """From when on the constraint refuses rows: where its month begins."""
        assert self.rule is not None
        return datetime.strptime(self.rule[-6:], "%Y%m").replace(tzinfo=UTC)

    @property
    def ruled(self) -> str:
        """The table that has the constraint."""
        return self.named(REST) if self.is_partitioned else self.table

    def covers(self, moment: datetime) -> bool:
        """Whether a partition other than the rest takes what ends then."""
        return any(
            one.until is not None and moment < one.until and (one.since is None or one.since <= moment)
            for one in self.partitions
        )

    def missing(self, now: datetime) -> list[datetime]:
        """The months that have no partition, and should have one by now."""
        months = [month(now, further) for further in range(AHEAD + 1)]
        return [one for one in months if self.is_partitioned and not self.covers(one)]

    def is_left(self, now: datetime) -> bool:
        """Whether the constraint would soon refuse rows, or is of no use: whoever has made it was stopped."""
        if self.rule is None:
            return False
        return self.boundary - now < EXPIRES or (self.is_partitioned and self.boundary not in self.missing(now))


def state_of(database: Database) -> State | None:
    """None: there is no such table, as the database was not migrated."""
    rows = database.rows(STATE)
    if not rows:
        return None
    schema, owner, is_partitioned, rule, is_valid, *_ = rows[0]
    parts = [Partition(*row[5:]) for row in rows if row[5] is not None]
    return State(schema, owner, is_partitioned, rule, bool(is_valid), parts)


def month(moment: datetime, further: int = 0) -> datetime:
    """The beginning of its month, or of one that is so many months further."""
    moment = moment.astimezone(UTC)
    year, number = divmod(12 * moment.year + moment.month - 1 + further, 12)
    return datetime(year, number + 1, 1, tzinfo=UTC)


def _first_month(now: datetime) -> datetime:
    following = month(now, 1)
    return following if following - now >= NOTICE else month(now, 2)


# The conversion: each call of `_convert` is one step, and the catalogue says which.


def partition(store: Store, retention: timedelta | None) -> Iterator[PartitionChange]:
    """See `Store.partition_history`."""
    while (step := _convert_or_take_back(store)) is not None:
        yield PartitionChange(step, TABLE)
    while (change := maintain(store, retention, is_patient=True)) is not None:
        yield change


def _convert_or_take_back(store: Store) -> PartitionStep | None:
    """What could not be done leaves no constraint, which rows of a later month would not meet."""
    try:
        return _convert(store.database, store.now())
    except BaseException:
        with suppress(Error):  # then a keeper does it
            state = state_of(store.database)
            if state is not None and state.rule is not None and not state.is_partitioned:
                _take_back(store.database, state)
        raise


def _take_back(database: Database, state: State) -> None:
    """At once, or not at all if the table is locked: raises OperationalError then."""
    with database.atomic(), database.short_lock_waits():
        drop_rule(database, state)


def _convert(database: Database, now: datetime) -> PartitionStep | None:
    state = state_of(database)
    if state is None or state.is_partitioned:
        return None
    if state.rule is None:
        refuse_dependents(database, state)
        rule, until = f"{UNTIL}{_first_month(now):%Y%m}", _first_month(now)
        patiently(database, lambda: database.write(ADD_RULE.format(table=state.table, rule=rule, until=until)))
        return PartitionStep.BEGUN
    if state.is_left(now) or not state.rule.startswith(UNTIL):
        patiently(database, lambda: drop_rule(database, state))
        return PartitionStep.BEGUN_AGAIN
    if not state.is_valid:
        _validate(database, state)
        return PartitionStep.CHECKED
    refuse_dependents(database, state)
    patiently(database, lambda: _switch(database, state))
    with database.atomic():
        database.write(NO_TIMEOUT)
        database.write(ANALYZE.format(table=state.table))
    return PartitionStep.PARTITIONED


def refuse_dependents(database: Database, state: State) -> None:
    """Raise CannotPartition for what names the table, and is not of delayedq."""
    if found := database.rows(DEPENDENTS, {"table": state.table}):
        what = ", ".join(sorted(row[0] for row in found))
        raise CannotPartition(
            f"The history of the database {database.alias!r} can't be partitioned, nor become one table again: {what} "
            "would still mean the table as it was. Drop what that is, and make it again afterwards if it can be."
        )


def drop_rule(database: Database, state: State) -> None:
    database.write(dropped_rule(state))


def dropped_rule(state: State) -> str:
    """The statement that drops the constraint."""
    return DROP_RULE.format(table=state.ruled, rule=state.rule)


def _validate(database: Database, state: State) -> None:
    """Reads all rows; nobody waits for it."""
    try:
        with database.atomic():
            database.write(NO_TIMEOUT)
            database.write(VALIDATE.format(table=state.table, rule=state.rule))
    except IntegrityError:
        patiently(database, lambda: drop_rule(database, state))
        raise CannotPartition(
            f"Rows of the history of the database {database.alias!r} ended at {state.boundary:%Y-%m-%d} or later, by a "
            "clock that was wrong: correct or delete them first."
        ) from None


def _switch(database: Database, state: State) -> None:
    """The table becomes the first partition of a new one of its name, which is all that others see."""
    table, part, rest = state.table, state.named(BEFORE), state.named(REST)
    database.write(LOCK.format(table=table))
    indexes = database.rows(INDEXES, {"table": table})
    grants = database.rows(GRANTS, {"table": table})
    for index, name, _ in indexes:
        database.write(RENAME_INDEX.format(index=index, name=name))
    database.write(RENAME.format(table=table))
    database.write(PARENT.format(table=table, part=part))
    for _, _, definition in indexes:
        database.write(definition.replace("%", "%%"))
    database.write(ATTACH_BEFORE.format(table=table, part=part, until=state.boundary))
    database.write(DROP_RULE.format(table=part, rule=state.rule))
    database.write(CREATE.format(table=table, part=rest))
    database.write(ATTACH_REST.format(table=table, part=rest))
    for name in (table, rest):
        give(database, name, state.owner, grants)


def give(database: Database, table: str, owner: str, grants: Sequence[Sequence[str]]) -> None:
    """Who may read a partition by its name, as pg_dump does, is who may read the whole, whatever default privileges
    gave others when it was made.
    """
    database.write(OWNER.format(table=table, owner=owner))
    for grantee in {row[1] for row in database.rows(GRANTS, {"table": table})}:
        database.write(REVOKE.format(table=table, grantee=grantee))
    for privilege, grantee, option in grants:
        database.write(GRANT.format(privilege=privilege, table=table, grantee=grantee, option=option))


# Months: made ahead of time, and dropped when retention lets them go.


def maintain(store: Store, retention: timedelta | None, *, is_patient: bool = False) -> PartitionChange | None:
    """See `Store.maintain_partitions`. One statement where the history has no partitions.

    is_patient: the rest may take longer to read than a lease keeper waits.
    """
    state = state_of(store.database)
    if state is None:
        return None
    now = store.now()
    if not state.is_partitioned:
        if state.is_left(now):
            logger.warning("The history was not partitioned to the end. Run: manage.py delayedq partition")
            _take_back(store.database, state)
        return None
    failed: OperationalError | None = None
    try:
        if state.is_left(now):
            _let_in_again(store.database)
        for since in state.missing(now):
            if made := _create(store.database, state, since, is_ahead=since - now >= EXPIRES, is_patient=is_patient):
                return made
    except OperationalError as error:  # locked for long; what is old may go all the same
        failed = error
    dropped = _drop_one(store, state, now, retention)
    if dropped is None and failed is not None:
        raise failed
    return dropped


def _create(
    database: Database, state: State, since: datetime, *, is_ahead: bool, is_patient: bool
) -> PartitionChange | None:
    """None if another process does it, or if the rest has so many rows of this month that they stay there.

    is_ahead: it begins in some days.
    """
    if not is_ahead or _has_rows(database, state, since, month(since, 1)):
        return _attach(database, since)
    try:
        is_ready = _keep_out(database, since) and _check_rest(database, since, is_patient=is_patient)
        return _attach(database, since) if is_ready else None
    except BaseException:
        with suppress(Error):  # then a keeper does it
            _let_in_again(database)
        raise


def _has_rows(database: Database, state: State, since: datetime | None, until: datetime | None) -> bool:
    """Without a lock: another process may have dropped a partition by now, so the whole is asked."""
    return bool(database.rows(ANY_OF_MONTH.format(table=state.table, since=since or "-infinity", until=until)))


def _words(state: State, since: datetime) -> dict[str, object]:
    """What statements about a month name. Its constraint and its partition have it in their names."""
    part, rule = state.named(f"{TABLE}_{since:%Y%m}"), f"delayedq_without_{since:%Y%m}"
    names = {"table": state.table, "part": part, "rest": state.named(REST), "rule": rule}
    return {**names, "since": since, "until": month(since, 1)}


def _keep_out(database: Database, since: datetime) -> bool:
    """From now on the rest refuses rows of a month that is days ahead. False: another process makes it."""
    with database.atomic(), database.short_lock_waits():
        state = _alone(database)
        if state is None or state.covers(since):
            return False
        words = _words(state, since)
        if state.rule != words["rule"]:
            if state.rule is not None:
                drop_rule(database, state)
            database.write(ADD_WITHOUT.format(**words))
    return True


def _check_rest(database: Database, since: datetime, *, is_patient: bool) -> bool:
    """Reads all of the rest; nobody waits for it. False: another process makes this month."""
    with database.atomic(), database.short_lock_waits():
        state = _alone(database)
        if state is None or state.rule != (rule := _words(state, since)["rule"]):
            return False
        if not state.is_valid:
            database.write(NO_TIMEOUT if is_patient else CHECK_SHORT)
            database.write(VALIDATE.format(table=state.ruled, rule=rule))
    return True


def _let_in_again(database: Database) -> None:
    with database.atomic(), database.short_lock_waits():
        state = _alone(database)
        if state is not None and state.rule is not None:
            drop_rule(database, state)


def _attach(database: Database, since: datetime) -> PartitionChange | None:
    """See `_create`. Reads the rest only if no valid constraint says that it has no row of this month."""
    with database.atomic(), database.short_lock_waits():
        state = _alone(database)
        if state is None or state.covers(since):
            return None
        words = _words(state, since)
        is_kept_out = state.rule == words["rule"] and state.is_valid
        if not is_kept_out and _is_too_large(database, words):
            return None
        database.write(LOCK.format(table=words["rest"]))
        for statement in (CREATE, ATTACH) if is_kept_out else (CREATE, MOVE, ATTACH):
            database.write(statement.format(**words))
        if state.rule == words["rule"]:
            drop_rule(database, state)
        grants = database.rows(GRANTS, {"table": state.table})
        give(database, str(words["part"]), state.owner, grants)
    return PartitionChange(PartitionStep.CREATED, f"{TABLE}_{since:%Y%m}")


def _is_too_large(database: Database, words: dict[str, object]) -> bool:
    """Whether the rest would take too long under the lock: then the rows of this month stay there."""
    too_many = database.rows(TOO_MANY.format(**words), {"most": MOST})
    if not too_many and database.rows(SIZE, {"rest": words["rest"]})[0][0] <= READ_LOCKED:
        return False
    logger.info("History: %s is not made, as %s has too many rows.", words["part"], REST)
    return True


def _drop_one(store: Store, state: State, now: datetime, retention: timedelta | None) -> PartitionChange | None:
    """The first that can be dropped; of those that retention keeps, the first that is empty."""
    for one in (one for one in state.partitions if one.until is not None and one.until <= now - LATE):
        is_old = retention is not None and one.until is not None and one.until <= now - retention
        if not is_old and _has_rows(store.database, state, one.since, one.until):
            continue
        if _drop(store, one, is_old=is_old):
            return PartitionChange(PartitionStep.DROPPED, one.name)
    return None


def _drop(store: Store, part: Partition, *, is_old: bool) -> bool:
    """Drop it, and move what must stay into the rest. False: another process does it, or too much must stay."""
    database = store.database
    with database.atomic(), database.short_lock_waits():
        state = _alone(database)
        if state is None or part not in state.partitions:
            return False
        words = {"table": state.table, "part": state.named(part.name)}
        database.write(LOCK_MONTH.format(**words))
        kept = _needed(store, part) if is_old else set()
        if len(kept) > MOST or (not is_old and database.rows(ANY_ROW.format(**words))):
            return False
        database.write(LOCK_PARENT.format(**words))
        database.write(DETACH.format(**words))
        if kept:
            database.write(KEEP.format(**words), {"ids": sorted(kept)})
        database.write(DROP.format(**words))
    logger.info("History: the partition %s was dropped; %d of its rows stay in %s.", part.name, len(kept), REST)
    return True


def _needed(store: Store, part: Partition) -> set[int]:
    """The ids of the rows that pruning would spare; some more than MOST if there are more."""
    from delayedq.models import FinishedMessage  # stores are imported before the models are loaded

    rows = FinishedMessage.objects.using(store.alias).filter(finished_at__lt=part.until)
    if part.since is not None:
        rows = rows.filter(finished_at__gte=part.since)
    unneeded = unneeded_condition(store.alias)
    asked = [rows.failed(), *map(rows.filter, needed_by_features(store.alias))]
    if unneeded is not None:
        asked.append(rows.exclude(unneeded))
    return {id_ for one in asked for id_ in one.values_list("id", flat=True)[: MOST + 1]}


def _alone(database: Database) -> State | None:
    """In a transaction: what there is now; None if another process changes it, or has made it one table again."""
    database.write(SHORT)
    if not database.rows(ALONE)[0][0]:
        return None
    state = state_of(database)
    return state if state is not None and state.is_partitioned else None
