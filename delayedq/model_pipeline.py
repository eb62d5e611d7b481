"""The books of the pipeline: what was loaded, and what moves to the lake. Part of `delayedq.models`."""

from __future__ import annotations

from typing import ClassVar

from django.db import models

from delayedq.core.limits import KEY_LENGTH, NAME_LENGTH


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
    """Messages on their way in: what one attempt at one partition of a load wrote. The winners' become messages.

    On PostgreSQL the table is unlogged, and has no index: it is written and read once.
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
    """How far a batch is: its rows are still in the table in all states but the last."""

    PLANNED = "planned"
    #: The files are written, and nobody has read them back.
    WRITTEN = "written"
    #: The files were read back and hold what the table holds. The lake shows them.
    VERIFIED = "verified"
    DELETED = "deleted"


class ArchiveBatch(models.Model):
    """History on its way into the lake: all that finished before `cutoff`. There is one open batch at a time.

    While it is open, pruning leaves history before its cutoff alone.
    """

    name = models.CharField(max_length=NAME_LENGTH, unique=True)
    state = models.CharField(max_length=10, choices=ArchiveState, default=ArchiveState.PLANNED)
    is_open = models.BooleanField(null=True, default=True, unique=True, help_text="True, or empty when deleted.")
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

    class Meta:
        # All supported databases have it. Else each `manage.py check` would connect to the database to ask.
        required_db_features: ClassVar = ["supports_json_field"]

    def __str__(self) -> str:
        return f"{self.name} {self.state}"
