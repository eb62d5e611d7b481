from typing import Any

from django.db import migrations, models

# Staged messages are written and read once, and a crash may lose them: their load is begun again.
STAGING = """
ALTER TABLE delayedq_pipeline_loadstaging SET UNLOGGED, DROP CONSTRAINT delayedq_pipeline_loadstaging_pkey
"""

# Texts compare exactly, as keys do in the queue itself.
COLLATION = "ALTER TABLE {} CONVERT TO CHARACTER SET utf8mb4 COLLATE {}"
TABLES = (
    "delayedq_pipeline_load",
    "delayedq_pipeline_loadstaging",
    "delayedq_pipeline_archivebatch",
    "delayedq_pipeline_lakecheck",
    "delayedq_pipeline_replayedmessage",
)


def set_storage(apps: object, schema_editor: Any) -> None:
    connection = schema_editor.connection
    if connection.vendor == "postgresql":
        schema_editor.execute(STAGING)
    if connection.vendor == "mysql":
        collation = "utf8mb4_nopad_bin" if connection.mysql_is_mariadb else "utf8mb4_0900_bin"
        for table in TABLES:
            schema_editor.execute(COLLATION.format(table, collation))


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="ArchiveBatch",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", models.CharField(max_length=200, unique=True)),
                (
                    "number",
                    models.BigIntegerField(
                        help_text="Of its rows in the lake, which takes each number once.", unique=True
                    ),
                ),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("planned", "Planned"),
                            ("written", "Written"),
                            ("verified", "Verified"),
                            ("deleting", "Deleting"),
                            ("deleted", "Deleted"),
                            ("abandoned", "Abandoned"),
                        ],
                        default="planned",
                        max_length=10,
                    ),
                ),
                (
                    "is_open",
                    models.BooleanField(default=True, help_text="True, or empty when it is done.", null=True, unique=True),
                ),
                ("lake", models.TextField()),
                ("cutoff", models.DateTimeField()),
                (
                    "attempt",
                    models.IntegerField(
                        default=0, help_text="How often its files were begun; each has a place of its own."
                    ),
                ),
                ("row_count", models.BigIntegerField(blank=True, help_text="How many the files hold.", null=True)),
                ("checksums", models.JSONField(blank=True, help_text="Of the files, as read back.", null=True)),
                ("lease_token", models.BigIntegerField(blank=True, help_text="Fences every step.", null=True)),
                ("leased_until", models.DateTimeField(blank=True, null=True)),
                ("planned_at", models.DateTimeField()),
                ("written_at", models.DateTimeField(blank=True, null=True)),
                ("verified_at", models.DateTimeField(blank=True, null=True)),
                ("deleted_at", models.DateTimeField(blank=True, null=True)),
                (
                    "restored_at",
                    models.DateTimeField(
                        blank=True,
                        help_text="When rows of it were last put back; until they are deleted, both have them.",
                        null=True,
                    ),
                ),
            ],
            options={
                "required_db_features": ["supports_json_field"],
            },
        ),
        migrations.CreateModel(
            name="Load",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("load_id", models.CharField(max_length=200, unique=True)),
                (
                    "state",
                    models.CharField(
                        choices=[("staging", "Staging"), ("loaded", "Loaded"), ("aborted", "Aborted")],
                        default="staging",
                        max_length=10,
                    ),
                ),
                ("source", models.TextField(blank=True, default="", help_text="What was read.")),
                ("row_count", models.BigIntegerField(blank=True, help_text="How many were offered.", null=True)),
                ("inserted", models.BigIntegerField(blank=True, null=True)),
                (
                    "duplicates",
                    models.BigIntegerField(blank=True, help_text="How many had the key of a live message.", null=True),
                ),
                ("started_at", models.DateTimeField()),
                ("finished_at", models.DateTimeField(blank=True, null=True)),
            ],
        ),
        migrations.CreateModel(
            name="LoadStaging",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("load_id", models.CharField(max_length=200)),
                ("partition_id", models.IntegerField()),
                ("attempt", models.BigIntegerField()),
                (
                    "scheduled_at",
                    models.DateTimeField(blank=True, help_text="Empty: at the moment of the load.", null=True),
                ),
                ("priority", models.SmallIntegerField()),
                ("max_attempts", models.SmallIntegerField()),
                ("queue", models.CharField(max_length=200)),
                ("kind", models.CharField(max_length=200)),
                ("key", models.CharField(blank=True, max_length=200, null=True)),
                ("payload", models.TextField()),
                ("metadata", models.TextField(blank=True, null=True)),
            ],
        ),
        migrations.CreateModel(
            name="LakeCheck",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("lake", models.TextField()),
                ("checked_at", models.DateTimeField()),
                ("faults", models.IntegerField()),
                ("first", models.TextField(blank=True, default="", help_text="The first fault, if there is one.")),
                (
                    "last",
                    models.BigIntegerField(default=0, help_text="The last batch of this database that the lake had."),
                ),
            ],
        ),
        migrations.CreateModel(
            name="StepRun",
            fields=[
                ("step", models.CharField(max_length=200, primary_key=True, serialize=False)),
                ("message_id", models.BigIntegerField()),
                ("began_at", models.DateTimeField()),
                (
                    "ended_at",
                    models.DateTimeField(
                        blank=True, help_text="Empty: it runs, or was ended from outside.", null=True
                    ),
                ),
                ("succeeded", models.BooleanField(default=False)),
            ],
        ),
        migrations.CreateModel(
            name="ReplayedMessage",
            fields=[
                ("key", models.CharField(max_length=200, primary_key=True, serialize=False)),
                ("load_id", models.CharField(help_text="The run of the replay that sent it.", max_length=200)),
            ],
        ),
        # MySQL can't change a table within a transaction; on PostgreSQL the whole migration is one.
        migrations.RunPython(set_storage, migrations.RunPython.noop, atomic=False),
    ]
