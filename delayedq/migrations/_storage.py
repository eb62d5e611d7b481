"""How the databases store the tables of 0001: what models can't say."""

from __future__ import annotations

from typing import Any

from delayedq.store.lineage import HAS_PARENT, PARENT_OF

# Over half of each page is left free, so that a claim finds room for its longer row version beside the old one (a heap-
# only update, no index is written; with a fillfactor of 50, 82 % are, and 704 instead of 653 bytes of log per message).
# Vacuumed after 2,000 dead rows whatever its size, at full speed, without giving back pages under an exclusive lock.
STORAGE = """
ALTER TABLE delayedq_message SET (
    fillfactor = 45,
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 20000,
    vacuum_truncate = false
)
"""

# The due index ends with the id, so PostgreSQL may also use it to find rows by their ids alone: from end to end, or by
# skipping. Where it takes the table for empty, which a queue mostly is, it thinks that as cheap as the primary key, and
# each settle_and_claim read 100,000 entries (6,600 instead of 33,000 messages per second). The condition, which holds
# for every row, is implied by any comparison of `queue`: claims may use the index, those that know only ids may not.
DUE_INDEX = (
    "DROP INDEX delayedq_due",
    "CREATE INDEX delayedq_due ON delayedq_message (queue, priority, scheduled_at, id) WHERE queue IS NOT NULL",
)

# A claim from channels writes only those of these indexes that its rows are in then: a channel that is in turn does not
# rest, and a message that runs is not due. What channels hold is counted by the other indexes of their messages.
CHANNEL_INDEXES = (
    "DROP INDEX delayedq_turn",
    "CREATE INDEX delayedq_turn ON delayedq_channel (group_id, turn, id) WHERE is_ready",
    "DROP INDEX delayedq_ready",
    "CREATE INDEX delayedq_ready ON delayedq_channel (ready_at) WHERE NOT is_ready",
    "DROP INDEX delayedq_channel_due",
    "CREATE INDEX delayedq_channel_due ON delayedq_channelmessage (channel_id, due_at) WHERE lease_token = 0",
)
CHANNEL_STORAGE = """
ALTER TABLE {} SET (
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0,
    vacuum_truncate = false
)
"""
TABLES_OF_CHANNELS = ("delayedq_channel", "delayedq_channelmessage", "delayedq_channelnotice")

# The end of a message is written into the row of its member, beside which there is room: no index is written.
MEMBERS = "ALTER TABLE delayedq_flowmember SET (fillfactor = 40)"

# Keys that begin alike stand together in their index only if it is sorted by code points, as on the other databases.
KEY = 'ALTER TABLE delayedq_message ALTER COLUMN key TYPE varchar(200) COLLATE "C"'

# What a message has made is found by its id in the metadata of these (`store.lineage`). No other has an entry.
MADE_BY = (
    "CREATE INDEX delayedq_made_by ON delayedq_message (({parent_of})) WHERE {has_parent}",
    "CREATE INDEX delayedq_ended_made_by ON delayedq_finishedmessage (({parent_of})) WHERE {has_parent}",
)

# Texts compare exactly, also case, accents and trailing blanks, whatever the database's own collation is. MySQL has no
# partial index. NULL does not equal NULL in a plain one either, so unkeyed messages don't collide. That of the dead
# letters would be one more index of all history by time, and is left out; that of fingerprints has an entry for each
# row, NULL but for dead letters, which is written at its end.
COLLATION = "ALTER TABLE {} CONVERT TO CHARACTER SET utf8mb4 COLLATE {}"
NO_DEAD = "DROP INDEX delayedq_dead ON delayedq_finishedmessage"
UNIQUE_KEY = "CREATE UNIQUE INDEX delayedq_key ON delayedq_message (kind, `key`)"
TABLES_WITH_NAMES = (
    "delayedq_message",
    "delayedq_finishedmessage",
    "delayedq_cronschedule",
    "delayedq_pausedqueue",
    "delayedq_pausedtask",
    "delayedq_worker",
    "delayedq_edit",
    "delayedq_editedmessage",
    "delayedq_channelgroup",
    "delayedq_channel",
    "delayedq_channelnotice",
    "delayedq_channelsize",
    "delayedq_limitstate",
    "delayedq_messageprogress",
    "delayedq_flow",
    "delayedq_flowstep",
    "delayedq_flowmember",
    "delayedq_recordedstep",
)


def set_storage(apps: object, schema_editor: Any) -> None:
    connection = schema_editor.connection
    if connection.vendor == "postgresql":
        of_channels = map(CHANNEL_STORAGE.format, TABLES_OF_CHANNELS)
        for statement in (STORAGE, *DUE_INDEX, KEY, MEMBERS, *CHANNEL_INDEXES, *of_channels):
            schema_editor.execute(statement)
    if connection.vendor in PARENT_OF:
        words = {"parent_of": PARENT_OF[connection.vendor], "has_parent": HAS_PARENT.replace("%%", "%")}
        for statement in MADE_BY:
            schema_editor.execute(statement.format(**words), params=None)
    if connection.vendor == "mysql":
        collation = "utf8mb4_nopad_bin" if connection.mysql_is_mariadb else "utf8mb4_0900_bin"
        for table in TABLES_WITH_NAMES:
            schema_editor.execute(COLLATION.format(table, collation))
        for statement in (UNIQUE_KEY, NO_DEAD):
            schema_editor.execute(statement)
