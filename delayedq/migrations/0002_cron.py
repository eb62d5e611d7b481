from typing import Any

import django.db.models.deletion
from django.db import migrations, models


def set_collation(apps: object, schema_editor: Any) -> None:
    """Names of schedules compare exactly, as keys do."""
    connection = schema_editor.connection
    if connection.vendor == "mysql":
        collation = "utf8mb4_nopad_bin" if connection.mysql_is_mariadb else "utf8mb4_0900_bin"
        schema_editor.execute(f"ALTER TABLE delayedq_cronschedule CONVERT TO CHARACTER SET utf8mb4 COLLATE {collation}")


class Migration(migrations.Migration):
    dependencies = [
        ("delayedq", "0001_initial"),
    ]

    operations = [
        migrations.CreateModel(
            name="CronSchedule",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "owner",
                    models.CharField(
                        blank=True, help_text="Empty for settings; else the kind of the queue.", max_length=200
                    ),
                ),
                ("name", models.CharField(max_length=200)),
                (
                    "config_hash",
                    models.CharField(
                        blank=True, help_text="Of its definition; empty while there is none.", max_length=64
                    ),
                ),
                (
                    "covered_until",
                    models.DateTimeField(help_text="Up to here ticks were placed or passed over; no more will come."),
                ),
                (
                    "attended_at",
                    models.DateTimeField(blank=True, help_text="When a worker last saw to it.", null=True),
                ),
            ],
            options={
                "constraints": [models.UniqueConstraint(fields=("owner", "name"), name="delayedq_schedule")],
            },
        ),
        migrations.CreateModel(
            name="CronTick",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("nominal_at", models.DateTimeField(help_text="When the schedule says.")),
                ("config_hash", models.CharField(max_length=64)),
                ("message_id", models.BigIntegerField(blank=True, null=True)),
                (
                    "schedule",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="ticks",
                        to="delayedq.cronschedule",
                    ),
                ),
            ],
            options={
                "constraints": [models.UniqueConstraint(fields=("schedule", "nominal_at"), name="delayedq_tick")],
            },
        ),
        # MySQL can't change a table within a transaction; on PostgreSQL the whole migration is one.
        migrations.RunPython(set_collation, migrations.RunPython.noop, atomic=False),
    ]
