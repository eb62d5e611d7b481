import django.db.models.deletion
from django.db import migrations, models

from delayedq.migrations._storage import set_storage


class Migration(migrations.Migration):
    initial = True

    dependencies = []

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
                ("undone_by", models.CharField(blank=True, default="", help_text="As made_by.", max_length=200)),
                ("changed", models.IntegerField(default=0, help_text="How many messages.")),
                ("skipped", models.IntegerField(default=0, help_text="How many were running, or had ended.")),
                (
                    "why",
                    models.CharField(blank=True, db_default="", help_text="As who did it has said.", max_length=500),
                ),
            ],
            options={
                "verbose_name": "edit",
                "verbose_name_plural": "edits",
                "default_permissions": ("view",)},
        ),
        migrations.CreateModel(
            name="LockedRenewal",
            fields=[
                ("message_id", models.BigIntegerField(primary_key=True, serialize=False)),
                ("lease_token", models.BigIntegerField()),
                ("leased_until", models.DateTimeField()),
            ],
            options={"default_permissions": ()},
        ),
        migrations.CreateModel(
            name="Flow",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("name", models.CharField(max_length=200)),
                ("policy", models.CharField(default="stop", max_length=10)),
                ("created_at", models.DateTimeField(verbose_name="created")),
                (
                    "deadline",
                    models.DurationField(blank=True, help_text="Counts from its start, and from each retry.", null=True),
                ),
                ("deadline_at", models.DateTimeField(blank=True, null=True, verbose_name="deadline")),
                ("stopped_at", models.DateTimeField(blank=True, null=True, verbose_name="cancelled")),
                ("ended_at", models.DateTimeField(blank=True, db_index=True, null=True, verbose_name="ended")),
                ("outcome", models.CharField(blank=True, help_text="How it ended; empty: it has not.", max_length=10)),
                (
                    "on_failure",
                    models.TextField(blank=True, help_text="JSON: what is enqueued if it fails.", null=True),
                ),
            ],
            options={"verbose_name": "flow", "verbose_name_plural": "flows", "default_permissions": ("view",)},
        ),
        migrations.CreateModel(
            name="FlowMember",
            fields=[
                ("message_id", models.BigIntegerField(primary_key=True, serialize=False)),
                ("step_id", models.BigIntegerField()),
                ("outcome", models.CharField(blank=True, max_length=10, null=True)),
            ],
            options={
                "default_permissions": (),
                "indexes": [models.Index(fields=["step_id", "message_id"], name="delayedq_member")],
            },
        ),
        migrations.CreateModel(
            name="FlowStep",
            fields=[
                ("id", models.BigIntegerField(primary_key=True, serialize=False)),
                ("flow_id", models.BigIntegerField(db_index=True)),
                ("name", models.CharField(max_length=200)),
                ("state", models.CharField(default="waiting", max_length=10)),
                ("after", models.TextField(default="[]", help_text="JSON: the numbers of the steps that come before.")),
                ("runs_when", models.CharField(default="succeeded", max_length=20)),
                ("kind", models.CharField(help_text="The task; that of the first member.", max_length=200)),
                ("is_group", models.BooleanField(default=False)),
                ("size", models.IntegerField(default=0, help_text="How many messages it has, or will have.")),
                (
                    "calls",
                    models.TextField(blank=True, help_text="JSON: the messages to store when released.", null=True),
                ),
                ("released_at", models.DateTimeField(blank=True, null=True)),
                ("ended_at", models.DateTimeField(blank=True, null=True)),
            ],
            options={"default_permissions": ()},
        ),
        migrations.CreateModel(
            name="MessageProgress",
            fields=[
                ("message_id", models.BigIntegerField(primary_key=True, serialize=False)),
                ("done", models.FloatField()),
                ("total", models.FloatField(null=True)),
                ("note", models.CharField(blank=True, max_length=200)),
                ("began_at", models.DateTimeField(help_text="When the attempt first reported.")),
                ("written_at", models.DateTimeField()),
            ],
            options={"default_permissions": ()},
        ),
        migrations.CreateModel(
            name="RecordedStep",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("message_id", models.BigIntegerField()),
                ("generation", models.IntegerField(help_text="Of the message: a replacement begins anew.")),
                ("name", models.CharField(max_length=200)),
                ("result", models.TextField(help_text="JSON.")),
                ("recorded_at", models.DateTimeField(db_index=True)),
            ],
            options={
                "default_permissions": (),
                "constraints": [
                    models.UniqueConstraint(
                        fields=("message_id", "generation", "name"), name="delayedq_recorded_step"
                    )
                ],
            },
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
                "permissions": [
                    ("pause_queue", "Can pause and resume queues, tasks and channels"),
                    ("set_limit", "Can set limits of queues, tasks and channels"),
                ],
                "default_permissions": ("view",),
            },
        ),
        migrations.CreateModel(
            name="PausedTask",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("kind", models.CharField(help_text="The path of the task.", max_length=200, unique=True)),
                ("paused_at", models.DateTimeField(verbose_name="paused")),
                (
                    "paused_by",
                    models.CharField(blank=True, help_text="The name of a user; empty: a command.", max_length=200),
                ),
            ],
            options={"default_permissions": ()},
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
                (
                    "excluded_queues",
                    models.TextField(blank=True, default="", help_text="Of all, these are not served."),
                ),
                ("lease", models.FloatField(help_text="Seconds that a renewal lasts.")),
                (
                    "held",
                    models.IntegerField(default=0, help_text="How many messages it had claimed when it was last seen."),
                ),
                ("running", models.TextField(default="[]", help_text="JSON: the ids of those it had started then.")),
                ("problems", models.TextField(blank=True, default="", help_text="Empty: nothing is wrong with it.")),
                ("started_at", models.DateTimeField(verbose_name="started")),
                ("seen_at", models.DateTimeField(verbose_name="last seen")),
                (
                    "asked",
                    models.CharField(
                        blank=True,
                        db_default="",
                        help_text="What an operator asked of it; empty: nothing.",
                        max_length=200,
                    ),
                ),
                (
                    "asked_by",
                    models.CharField(blank=True, db_default="", help_text="The name of a user.", max_length=200),
                ),
            ],
            options={"permissions": [("stop_worker", "Can quiet and stop workers")], "default_permissions": ()},
        ),
        migrations.CreateModel(
            name="CronSchedule",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "owner",
                    models.CharField(
                        blank=True,
                        help_text="Empty for schedules of the settings and of the database; else the kind of the queue.",
                        max_length=200,
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
                    "definition",
                    models.TextField(
                        blank=True, help_text="JSON, of a schedule of the database; null: defined elsewhere.", null=True
                    ),
                ),
                (
                    "covered_until",
                    models.DateTimeField(help_text="Up to here ticks were placed or passed over; no more will come."),
                ),
                (
                    "next_at",
                    models.DateTimeField(
                        blank=True,
                        db_index=True,
                        help_text="When a beat visits it next: its next tick. Null: never.",
                        null=True,
                    ),
                ),
                ("runs", models.IntegerField(default=0, help_text="How many ticks were placed for this definition.")),
                (
                    "running_id",
                    models.BigIntegerField(
                        blank=True, help_text="Its message that runs, unless overlap is allowed.", null=True
                    ),
                ),
                (
                    "disabled_at",
                    models.DateTimeField(blank=True, help_text="Since then no tick is placed, by hand.", null=True),
                ),
                (
                    "retired_at",
                    models.DateTimeField(blank=True, help_text="Since then no worker defines it.", null=True),
                ),
            ],
            options={
                "verbose_name": "cron schedule",
                "verbose_name_plural": "cron schedules",
                "default_permissions": ("view",),
                "permissions": [
                    ("run_schedule", "Can run schedules now"),
                    ("disable_schedule", "Can disable and enable schedules"),
                    ("edit_schedule", "Can add, change and delete schedules of the database"),
                ],
                "constraints": [models.UniqueConstraint(fields=("owner", "name"), name="delayedq_schedule")],
            },
        ),
        migrations.CreateModel(
            name="CronSettings",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("digest", models.CharField(max_length=64, unique=True)),
                (
                    "content",
                    models.TextField(
                        help_text="JSON: the hash of each definition by name; empty for one that is disabled."
                    ),
                ),
                (
                    "seen_at",
                    models.DateTimeField(
                        help_text="When a worker with these settings last had a beat.", verbose_name="last seen"
                    ),
                ),
            ],
            options={"default_permissions": ()},
        ),
        migrations.CreateModel(
            name="EditedMessage",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("message_id", models.BigIntegerField(db_index=True)),
                ("generation", models.IntegerField()),
                ("before", models.TextField(help_text="JSON: what the edit changed, as it was.")),
                ("after", models.TextField(help_text="JSON: the same, as the edit left it.")),
                ("undone", models.BooleanField(default=False, help_text="An undo brought back what was before.")),
                (
                    "edit",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="messages", to="delayedq.edit"
                    ),
                ),
            ],
            options={"default_permissions": ()},
        ),
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
                            ("expired", "Expired"),
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
                (
                    "error",
                    models.CharField(blank=True, help_text="The last error in one line.", max_length=300, null=True),
                ),
                ("fingerprint", models.BigIntegerField(blank=True, help_text="What alike errors share.", null=True)),
            ],
            options={
                "verbose_name": "ended message",
                "verbose_name_plural": "history",
                "default_permissions": ("view",),
                "indexes": [
                    models.Index(
                        condition=models.Q(("fingerprint__isnull", False)),
                        fields=["fingerprint", "finished_at", "id"],
                        name="delayedq_fingerprint",
                    ),
                ],
            },
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
                ("generation", models.IntegerField(default=0, help_text="How often the keyed message was replaced.")),
                ("priority", models.SmallIntegerField(default=0, help_text="-100 to 100; higher runs first.")),
                ("max_attempts", models.SmallIntegerField()),
                ("queue", models.CharField(max_length=200)),
                ("kind", models.CharField(help_text="What reads the payload: the path of the task.", max_length=200)),
                ("key", models.CharField(blank=True, help_text="Unique within its kind.", max_length=200, null=True)),
                ("leased_until", models.DateTimeField(blank=True, null=True)),
                ("claimed_at", models.DateTimeField(blank=True, help_text="When a worker last claimed it.", null=True)),
                (
                    "lease_token",
                    models.BigIntegerField(blank=True, help_text="Fences every write after the claim.", null=True),
                ),
                ("attempt", models.SmallIntegerField(default=0, help_text="Charged at the claim.")),
                ("leased_by", models.CharField(blank=True, max_length=200, null=True)),
                ("payload", models.TextField(help_text="JSON.")),
                ("metadata", models.TextField(blank=True, help_text="JSON.", null=True)),
                ("errors", models.TextField(blank=True, help_text="JSON: one record per failed attempt.", null=True)),
            ],
            options={
                "verbose_name": "message",
                "verbose_name_plural": "messages",
                "default_permissions": ("view",),
                "permissions": [
                    ("reschedule_message", "Can run, reschedule and move messages"),
                    ("cancel_message", "Can cancel messages"),
                    ("retry_message", "Can retry dead letters"),
                    ("discard_message", "Can discard dead letters"),
                    ("stop_message", "Can stop running messages"),
                    ("send_message", "Can send messages"),
                    ("edit_payload", "Can edit the arguments of waiting messages"),
                    ("view_payload", "Can see arguments, results and errors"),
                    ("export_message", "Can export messages"),
                ],
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(("key__isnull", False)), fields=("kind", "key"), name="delayedq_key"
                    )
                ],
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
                "default_permissions": (),
                "constraints": [models.UniqueConstraint(fields=("schedule", "nominal_at"), name="delayedq_tick")],
            },
        ),
        migrations.CreateModel(
            name="ChannelGroup",
            fields=[
                ("id", models.BigIntegerField(primary_key=True, serialize=False)),
                ("queue", models.CharField(max_length=200)),
                ("kind", models.CharField(max_length=200)),
                ("turn", models.FloatField(default=0.0, help_text="Where its channels are that were served last.")),
            ],
            options={"default_permissions": ()},
        ),
        migrations.CreateModel(
            name="ChannelNotice",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("channel_id", models.BigIntegerField()),
                ("group_id", models.BigIntegerField()),
                ("queue", models.CharField(max_length=200)),
                ("kind", models.CharField(max_length=200)),
                ("name", models.CharField(blank=True, max_length=200)),
                ("at", models.DateTimeField()),
                ("ended", models.IntegerField(default=0, help_text="Attempts that ended,")),
                ("seconds", models.FloatField(default=0.0, help_text="and how long they took together.")),
            ],
            options={"default_permissions": ()},
        ),
        migrations.CreateModel(
            name="ChannelSize",
            fields=[
                ("id", models.BigIntegerField(primary_key=True, serialize=False)),
                ("size", models.IntegerField()),
                ("counted_at", models.DateTimeField(db_index=True)),
                (
                    "members",
                    models.TextField(
                        blank=True, help_text="JSON: the groups of a scope that offered; empty: a channel."
                    ),
                ),
            ],
            options={"default_permissions": ()},
        ),
        migrations.CreateModel(
            name="Channel",
            fields=[
                ("id", models.BigIntegerField(primary_key=True, serialize=False)),
                ("group_id", models.BigIntegerField()),
                ("name", models.CharField(blank=True, max_length=200)),
                ("is_ready", models.BooleanField(default=False)),
                (
                    "ready_at",
                    models.DateTimeField(
                        help_text="When it is looked at again, unless something happens in it before."
                    ),
                ),
                (
                    "turn",
                    models.FloatField(help_text="Seconds of work it had, by its weight; the lowest is served first."),
                ),
                ("seconds", models.FloatField(default=0.0, help_text="Mean of its messages.")),
                ("weight", models.FloatField(db_default=1.0, default=1.0, help_text="As a claim found it.")),
                ("tokens", models.FloatField(blank=True, null=True)),
                ("tokens_at", models.DateTimeField(blank=True, null=True)),
            ],
            options={"default_permissions": ()},
        ),
        migrations.CreateModel(
            name="ChannelMessage",
            fields=[
                ("message_id", models.BigIntegerField(primary_key=True, serialize=False)),
                ("channel_id", models.BigIntegerField()),
                ("group_id", models.BigIntegerField()),
                (
                    "urgency",
                    models.SmallIntegerField(
                        help_text=(
                            "The priority, negated: the lowest comes first. HEAD: it began, in a channel with a strict "
                            "order."
                        )
                    ),
                ),
                ("due_at", models.DateTimeField()),
                ("lease_token", models.BigIntegerField(default=0)),
                (
                    "held_until",
                    models.DateTimeField(blank=True, help_text="It is taken at least until then.", null=True),
                ),
            ],
            options={"default_permissions": ()},
        ),
        migrations.CreateModel(
            name="ExpiringResult",
            fields=[
                ("message_id", models.BigIntegerField(primary_key=True, serialize=False)),
                ("expires_at", models.DateTimeField(db_index=True)),
            ],
            options={"default_permissions": ()},
        ),
        migrations.CreateModel(
            name="LimitState",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("scope", models.CharField(help_text="The name of a queue, a task or a shared limit.", max_length=200)),
                ("channel", models.CharField(blank=True, help_text="Empty: all of the scope.", max_length=200)),
                ("definition", models.TextField(blank=True, help_text="JSON; null: it is not set live.", null=True)),
                ("tokens", models.FloatField(blank=True, null=True)),
                ("tokens_at", models.DateTimeField(blank=True, null=True)),
                ("share", models.IntegerField(blank=True, db_index=True, help_text="That of a channel.", null=True)),
            ],
            options={
                "default_permissions": (),
                "constraints": [models.UniqueConstraint(fields=("scope", "channel"), name="delayedq_limit")],
            },
        ),
        # Created before `set_storage`, which drops the first on MySQL, and replaces the others on PostgreSQL.
        migrations.AddIndex(
            model_name="finishedmessage",
            index=models.Index(
                condition=models.Q(("outcome", "failed")),
                fields=["finished_at"],
                include=("id", "kind", "queue"),
                name="delayedq_dead",
            ),
        ),
        migrations.AddIndex(
            model_name="message",
            index=models.Index(fields=["queue", "priority", "scheduled_at", "id"], name="delayedq_due"),
        ),
        migrations.AddIndex(
            model_name="channel",
            index=models.Index(fields=["group_id", "is_ready", "turn", "id"], name="delayedq_turn"),
        ),
        migrations.AddIndex(
            model_name="channel",
            index=models.Index(fields=["is_ready", "ready_at"], name="delayedq_ready"),
        ),
        migrations.AddIndex(
            model_name="channelmessage",
            index=models.Index(
                fields=["channel_id", "lease_token", "urgency", "due_at", "message_id"], name="delayedq_channel_order"
            ),
        ),
        migrations.AddIndex(
            model_name="channelmessage",
            index=models.Index(fields=["channel_id", "lease_token", "due_at"], name="delayedq_channel_due"),
        ),
        migrations.AddIndex(
            model_name="channelmessage",
            index=models.Index(fields=["group_id", "lease_token"], name="delayedq_channel_running"),
        ),
        # MySQL can't change a table within a transaction; on PostgreSQL the whole migration is one.
        migrations.RunPython(set_storage, migrations.RunPython.noop, atomic=False),
    ]
