from typing import Any

from django.db import migrations, models

# Messages are updated and deleted as fast as they come. Half of each page is left free, so that a claim finds room for
# its new row version beside the old one (a heap-only update, no index is written); and the table is vacuumed after
# 2,000 dead rows whatever its size, at full speed, without giving back pages under an exclusive lock.
STORAGE = """
ALTER TABLE delayedq_message SET (
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 20000,
    vacuum_truncate = false
)
"""

# Texts compare exactly, also case, accents and trailing blanks, whatever the database's own collation is. MySQL has no
# partial index; NULL does not equal NULL in a plain one either, so unkeyed messages don't collide.
COLLATION = "ALTER TABLE {} CONVERT TO CHARACTER SET utf8mb4 COLLATE {}"
UNIQUE_KEY = "CREATE UNIQUE INDEX delayedq_key ON delayedq_message (kind, `key`)"


def set_storage(apps: object, schema_editor: Any) -> None:
    connection = schema_editor.connection
    if connection.vendor == "postgresql":
        schema_editor.execute(STORAGE)
    if connection.vendor == "mysql":
        collation = "utf8mb4_nopad_bin" if connection.mysql_is_mariadb else "utf8mb4_0900_bin"
        for table in ("delayedq_message", "delayedq_finishedmessage"):
            schema_editor.execute(COLLATION.format(table, collation))
        schema_editor.execute(UNIQUE_KEY)


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="FinishedMessage",
            fields=[
                ("id", models.BigIntegerField(primary_key=True, serialize=False)),
                ("finished_at", models.DateTimeField(db_index=True)),
                (
                    "started_at",
                    models.DateTimeField(
                        blank=True, help_text="Of the last attempt; empty if none started.", null=True
                    ),
                ),
                ("scheduled_at", models.DateTimeField(verbose_name="due")),
                ("scheduled_at_initially", models.DateTimeField()),
                ("created_at", models.DateTimeField(verbose_name="created")),
                ("priority", models.SmallIntegerField()),
                ("attempts", models.SmallIntegerField(help_text="How often it was started.")),
                ("max_attempts", models.SmallIntegerField()),
                (
                    "outcome",
                    models.CharField(
                        choices=[
                            ("succeeded", "Succeeded"),
                            ("failed", "Failed"),
                            ("cancelled", "Cancelled"),
                            ("superseded", "Superseded"),
                        ],
                        max_length=10,
                    ),
                ),
                ("queue", models.CharField(max_length=200)),
                ("kind", models.CharField(max_length=200)),
                ("key", models.CharField(blank=True, max_length=200, null=True)),
                ("worker", models.CharField(blank=True, max_length=200, null=True)),
                ("payload", models.TextField()),
                ("metadata", models.TextField(blank=True, null=True)),
                ("result", models.TextField(blank=True, help_text="JSON.", null=True)),
                ("errors", models.TextField(blank=True, help_text="JSON: one record per failed attempt.", null=True)),
            ],
        ),
        migrations.CreateModel(
            name="Message",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                (
                    "scheduled_at",
                    models.DateTimeField(help_text="When it may start; a retry moves it.", verbose_name="due"),
                ),
                ("scheduled_at_initially", models.DateTimeField(help_text="When it was asked to start.")),
                ("created_at", models.DateTimeField(verbose_name="created")),
                ("leased_until", models.DateTimeField(blank=True, null=True)),
                (
                    "lease_token",
                    models.BigIntegerField(blank=True, help_text="Fences every write after the claim.", null=True),
                ),
                ("generation", models.IntegerField(default=0, help_text="How often the keyed message was replaced.")),
                ("priority", models.SmallIntegerField(default=0, help_text="-100 to 100; higher runs first.")),
                ("attempt", models.SmallIntegerField(default=0, help_text="Charged at the claim.")),
                ("max_attempts", models.SmallIntegerField()),
                ("queue", models.CharField(max_length=200)),
                ("kind", models.CharField(help_text="What reads the payload: the path of the task.", max_length=200)),
                ("key", models.CharField(blank=True, help_text="Unique within its kind.", max_length=200, null=True)),
                ("leased_by", models.CharField(blank=True, max_length=200, null=True)),
                ("payload", models.TextField(help_text="JSON.")),
                ("metadata", models.TextField(blank=True, help_text="JSON.", null=True)),
                ("errors", models.TextField(blank=True, help_text="JSON: one record per failed attempt.", null=True)),
            ],
            options={
                "indexes": [models.Index(fields=["queue", "priority", "scheduled_at", "id"], name="delayedq_due")],
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(("key__isnull", False)), fields=("kind", "key"), name="delayedq_key"
                    )
                ],
            },
        ),
        # MySQL can't change a table within a transaction; on PostgreSQL the whole migration is one.
        migrations.RunPython(set_storage, migrations.RunPython.noop, atomic=False),
    ]
