"""The tables of the pipeline: what was loaded, and what moves into the lake."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from django.db import models

from delayedq.core.bounds import KEY_LENGTH, NAME_LENGTH

if TYPE_CHECKING:
    from datetime import datetime

    from django.db.models import QuerySet


class LoadState(models.TextChoices):
    STAGING = "staging"
    LOADED = "loaded"
    ABORTED = "aborted"


class Load(models.Model):
    """One load of the pipeline. A `load_id` that is loaded is never loaded again."""

    load_id = models.CharField(max_length=NAME_LENGTH, unique=True)
    state = models.CharField(max_length=10, choices=LoadState, default=LoadState.STAGING)
    source = models.TextField(blank=True, default="", help_text="What was read.")
    row_count = models.BigIntegerField(null=True, blank=True, help_text="How many were offered.")
    inserted = models.BigIntegerField(null=True, blank=True)
    duplicates = models.BigIntegerField(null=True, blank=True, help_text="How many had the key of a live message.")
    started_at = models.DateTimeField()
    finished_at = models.DateTimeField(null=True, blank=True)

    def __str__(self) -> str:
        return f"{self.load_id} {self.state}"


class LoadStaging(models.Model):
    """Messages on their way in: what one attempt at one partition of a load wrote.

    Those of the attempts that succeeded become messages. On PostgreSQL the table is unlogged and has no index: each row
    is written and read once.
    """

    id = models.BigAutoField(primary_key=True)
    load_id = models.CharField(max_length=NAME_LENGTH)
    partition_id = models.IntegerField()
    attempt = models.BigIntegerField()
    scheduled_at = models.DateTimeField(null=True, blank=True, help_text="Empty: at the moment of the load.")
    priority = models.SmallIntegerField()
    max_attempts = models.SmallIntegerField()
    queue = models.CharField(max_length=NAME_LENGTH)
    kind = models.CharField(max_length=NAME_LENGTH)
    key = models.CharField(max_length=KEY_LENGTH, null=True, blank=True)
    payload = models.TextField()
    metadata = models.TextField(null=True, blank=True)

    def __str__(self) -> str:
        return f"{self.load_id} {self.kind} {self.key or self.pk}"


class ArchiveState(models.TextChoices):
    """How far a batch is. Its rows are in the table until it is deleting, and in the lake from then on."""

    PLANNED = "planned"
    #: The files are written and not yet read back.
    WRITTEN = "written"
    #: The files were read back and hold what the table holds. The lake shows them.
    VERIFIED = "verified"
    #: Some of its rows may be gone from the table: from now on the files are kept, and it can only be completed.
    DELETING = "deleting"
    DELETED = "deleted"
    #: It was given up: its rows are in the table, and go with the next batch.
    ABANDONED = "abandoned"


class ArchiveBatch(models.Model):
    """History on its way into the lake: all that finished before `cutoff`. At most one batch is open at a time.

    While it is open, pruning keeps history before its cutoff (see `PipelineConfig.ready`).
    """

    name = models.CharField(max_length=NAME_LENGTH, unique=True)
    number = models.BigIntegerField(unique=True, help_text="Of its rows in the lake, which takes each number once.")
    state = models.CharField(max_length=10, choices=ArchiveState, default=ArchiveState.PLANNED)
    is_open = models.BooleanField(null=True, default=True, unique=True, help_text="True, or empty when it is done.")
    lake = models.TextField()
    cutoff = models.DateTimeField()
    attempt = models.IntegerField(default=0, help_text="How often its files were begun; each has a place of its own.")
    row_count = models.BigIntegerField(null=True, blank=True, help_text="How many the files hold.")
    checksums = models.JSONField(null=True, blank=True, help_text="Of the files, as read back.")
    lease_token = models.BigIntegerField(null=True, blank=True, help_text="Fences every step.")
    leased_until = models.DateTimeField(null=True, blank=True)
    planned_at = models.DateTimeField()
    written_at = models.DateTimeField(null=True, blank=True)
    verified_at = models.DateTimeField(null=True, blank=True)
    deleted_at = models.DateTimeField(null=True, blank=True)
    restored_at = models.DateTimeField(
        null=True,
        blank=True,
        help_text="When rows of it were last put back; until they are deleted, both have them.",
    )

    class Meta:
        # All supported databases have it. Else each `manage.py check` would connect to the database to ask.
        required_db_features: ClassVar = ["supports_json_field"]

    def __str__(self) -> str:
        return f"{self.name} {self.state}"

    @classmethod
    def open_cutoff(cls) -> QuerySet[ArchiveBatch, datetime]:
        """The cutoff of the open batch: one row, or none."""
        # On SQLite Django 5.2 would write `= True` as the bare column, for which no index is used.
        return cls.objects.filter(is_open__in=[True]).values_list("cutoff", flat=True)

    @property
    def directory(self) -> str:
        """Where its attempt writes, in the lake."""
        return f"{self.name}-{self.attempt}"

    @classmethod
    def published(cls, lake: str) -> QuerySet[ArchiveBatch]:
        """The batches whose rows are in this lake, whether they are in the table, too, or not."""
        states = (ArchiveState.VERIFIED, ArchiveState.DELETING, ArchiveState.DELETED)
        return cls.objects.filter(lake=lake, state__in=states, row_count__gt=0)


class LakeCheck(models.Model):
    """What the last `check` of a lake has found."""

    lake = models.TextField()
    checked_at = models.DateTimeField()
    faults = models.IntegerField()
    first = models.TextField(blank=True, default="", help_text="The first fault, if there is one.")
    last = models.BigIntegerField(default=0, help_text="The last batch of this database that the lake had.")

    def __str__(self) -> str:
        return f"{self.lake} {self.faults}"


class StepRun(models.Model):
    """The last run of a step as a task (`tasks.run_step`). `step` is its key (`scheduled.key_of`)."""

    step = models.CharField(max_length=KEY_LENGTH, primary_key=True)
    message_id = models.BigIntegerField()
    began_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True, blank=True, help_text="Empty: it runs, or was ended from outside.")
    succeeded = models.BooleanField(default=False)

    def __str__(self) -> str:
        return f"{self.step} {self.began_at:%Y-%m-%d %H:%M}"


class ReplayedMessage(models.Model):
    """A message that was sent again, so that no later run of the same replay sends it once more.

    `key` is that of the message it was sent as: the replay and the id of the message then.
    """

    key = models.CharField(max_length=KEY_LENGTH, primary_key=True)
    load_id = models.CharField(max_length=NAME_LENGTH, help_text="The run of the replay that sent it.")

    def __str__(self) -> str:
        return self.key
