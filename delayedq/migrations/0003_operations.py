from typing import Any

import django.db.models.deletion
from django.db import migrations, models


# Names compare exactly, as those in the messages do.
def set_collation(apps: object, schema_editor: Any) -> None:
    connection = schema_editor.connection
    if connection.vendor == "mysql":
        collation = "utf8mb4_nopad_bin" if connection.mysql_is_mariadb else "utf8mb4_0900_bin"
        for table in ("delayedq_pausedqueue", "delayedq_worker", "delayedq_edit", "delayedq_editedmessage"):
            schema_editor.execute(f"ALTER TABLE {table} CONVERT TO CHARACTER SET utf8mb4 COLLATE {collation}")


class Migration(migrations.Migration):
    dependencies = [
        ("delayedq", "0002_cron"),
    ]

    operations = [
        migrations.CreateModel(
            name="Edit",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("action", models.CharField(max_length=200)),
                ("description", models.TextField(blank=True)),
                ("made_at", models.DateTimeField(verbose_name="made")),
                (
                    "made_by",
                    models.CharField(blank=True, help_text="The name of a user; empty: a command.", max_length=200),
                ),
                ("undone_at", models.DateTimeField(blank=True, null=True, verbose_name="undone")),
                ("changed", models.IntegerField(default=0, help_text="How many messages.")),
                ("skipped", models.IntegerField(default=0, help_text="How many were running, or had ended.")),
            ],
        ),
        migrations.CreateModel(
            name="PausedQueue",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("queue", models.CharField(max_length=200, unique=True)),
                ("paused_at", models.DateTimeField(verbose_name="paused")),
                (
                    "paused_by",
                    models.CharField(blank=True, help_text="The name of a user; empty: a command.", max_length=200),
                ),
            ],
            options={
                "verbose_name_plural": "queues",
                "permissions": [("pause_queue", "Can pause and resume queues")],
            },
        ),
        migrations.CreateModel(
            name="Worker",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", models.CharField(help_text="What its messages are leased by.", max_length=200, unique=True)),
                ("host", models.CharField(max_length=200)),
                ("pid", models.IntegerField(verbose_name="process id")),
                ("threads", models.IntegerField()),
                ("queues", models.TextField(blank=True, help_text="Those it serves, with commas between; empty: all.")),
                ("lease", models.FloatField(help_text="Seconds; what it renews holds so long.")),
                (
                    "held",
                    models.IntegerField(
                        default=0, help_text="How many messages it had claimed when it was last seen."
                    ),
                ),
                (
                    "running",
                    models.TextField(default="[]", help_text="JSON: the ids of those it had started then."),
                ),
                ("started_at", models.DateTimeField(verbose_name="started")),
                ("seen_at", models.DateTimeField(verbose_name="last seen")),
            ],
        ),
        migrations.AlterModelOptions(
            name="cronschedule",
            options={
                "permissions": [
                    ("run_schedule", "Can run schedules now"),
                    ("disable_schedule", "Can disable and enable schedules"),
                ]
            },
        ),
        migrations.AlterModelOptions(
            name="message",
            options={
                "permissions": [
                    ("reschedule_message", "Can run, reschedule and move messages"),
                    ("cancel_message", "Can cancel messages"),
                    ("retry_message", "Can retry dead letters"),
                ]
            },
        ),
        migrations.CreateModel(
            name="Dashboard",
            fields=[],
            options={
                "verbose_name": "dashboard",
                "verbose_name_plural": "dashboard",
                "proxy": True,
                "default_permissions": ("view",),
                "indexes": [],
                "constraints": [],
            },
            bases=("delayedq.message",),
        ),
        migrations.AddField(
            model_name="cronschedule",
            name="disabled_at",
            field=models.DateTimeField(blank=True, help_text="Since then no tick is placed, by hand.", null=True),
        ),
        migrations.CreateModel(
            name="EditedMessage",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("message_id", models.BigIntegerField(db_index=True)),
                ("generation", models.IntegerField()),
                ("before", models.TextField(help_text="JSON: what the edit changed, as it was.")),
                ("after", models.TextField(help_text="JSON: the same, as the edit left it.")),
                (
                    "edit",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="messages", to="delayedq.edit"
                    ),
                ),
            ],
        ),
        # MySQL has no partial index, and does without.
        migrations.AddIndex(
            model_name="finishedmessage",
            index=models.Index(
                condition=models.Q(("outcome", "failed")), fields=["finished_at"], name="delayedq_dead"
            ),
        ),
        # MySQL can't change a table within a transaction; on PostgreSQL the whole migration is one.
        migrations.RunPython(set_collation, migrations.RunPython.noop, atomic=False),
    ]
