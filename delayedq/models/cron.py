"""Cron schedules as the workers know them, and their ticks."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Self

from django.db import models
from django.utils.translation import gettext_lazy as _

from delayedq.core.bounds import NAME_LENGTH

if TYPE_CHECKING:
    from datetime import datetime

HASH_LENGTH = 64


class CronSchedule(models.Model):
    """A schedule: the definition that its future ticks were placed for, how far, and when a beat visits it next."""

    owner = models.CharField(
        max_length=NAME_LENGTH,
        blank=True,
        help_text="Empty for schedules of the settings and of the database; else the kind of the queue.",
    )
    name = models.CharField(max_length=NAME_LENGTH)
    config_hash = models.CharField(
        max_length=HASH_LENGTH, blank=True, help_text="Of its definition; empty while there is none."
    )
    definition = models.TextField(
        null=True, blank=True, help_text="JSON, of a schedule of the database; null: defined elsewhere."
    )
    covered_until = models.DateTimeField(help_text="Up to here ticks were placed or passed over; no more will come.")
    next_at = models.DateTimeField(
        null=True, blank=True, db_index=True, help_text="When a beat visits it next: its next tick. Null: never."
    )
    runs = models.IntegerField(default=0, help_text="How many ticks were placed for this definition.")
    running_id = models.BigIntegerField(
        null=True, blank=True, help_text="Its message that runs, unless overlap is allowed."
    )
    disabled_at = models.DateTimeField(null=True, blank=True, help_text="Since then no tick is placed, by hand.")
    retired_at = models.DateTimeField(null=True, blank=True, help_text="Since then no worker defines it.")

    class Meta:
        verbose_name = _("cron schedule")
        verbose_name_plural = _("cron schedules")
        default_permissions = ("view",)
        permissions: ClassVar = [
            ("run_schedule", "Can run schedules now"),
            ("disable_schedule", "Can disable and enable schedules"),
            ("edit_schedule", "Can add, change and delete schedules of the database"),
        ]
        constraints: ClassVar = [models.UniqueConstraint(fields=["owner", "name"], name="delayedq_schedule")]

    def __str__(self) -> str:
        return self.name


class CronSettings(models.Model):
    """The schedules in the settings of some workers. Of two that define the same one, the newer (higher id) decides.

    One row, with an empty digest, is that of all workers: see `cron.beat`.
    """

    digest = models.CharField(max_length=HASH_LENGTH, unique=True)
    content = models.TextField(help_text="JSON: the hash of each definition by name; empty for one that is disabled.")
    seen_at = models.DateTimeField("last seen", help_text="When a worker with these settings last had a beat.")

    class Meta:
        default_permissions = ()

    def __str__(self) -> str:
        return self.digest


class CronTickQuerySet(models.QuerySet["CronTick"]):
    def between(self, first: datetime, last: datetime) -> Self:
        """Both included."""
        return self.filter(nominal_at__gte=first, nominal_at__lte=last)


class CronTick(models.Model):
    """One tick of a schedule, placed as a message; it stays as the tombstone that keeps it from being placed again."""

    schedule = models.ForeignKey(CronSchedule, on_delete=models.CASCADE, related_name="ticks", db_index=False)
    nominal_at = models.DateTimeField(help_text="When the schedule says.")
    config_hash = models.CharField(max_length=HASH_LENGTH)
    message_id = models.BigIntegerField(null=True, blank=True)

    objects = CronTickQuerySet.as_manager()

    class Meta:
        default_permissions = ()
        constraints: ClassVar = [models.UniqueConstraint(fields=["schedule", "nominal_at"], name="delayedq_tick")]

    def __str__(self) -> str:
        return f"{self.schedule_id} at {self.nominal_at:%Y-%m-%d %H:%M:%S%z}"
