"""The form of a schedule of the database: texts to the keys of its definition, checked as those of the settings."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from django import forms
from django.core.exceptions import ValidationError
from django.utils.dateparse import parse_duration

from delayedq.core.ticks import Misfire, Overlap
from delayedq.cron.definitions import read_stored
from delayedq.exceptions import DelayedQError
from delayedq.tasks import registered

if TYPE_CHECKING:
    from collections.abc import Mapping

    from delayedq.cron.definitions import Definition


class Duration(forms.CharField):
    """Such as 900, 15:00 or 1 06:00:00."""

    def clean(self, value: Any) -> timedelta | None:
        text = super().clean(value)
        try:
            duration = parse_duration(text) if text else None
        except OverflowError:
            raise ValidationError("This is longer than all time that can be stored.") from None
        if text and duration is None:
            raise ValidationError("This is no duration; 900 are seconds, 15:00 are minutes, 1 06:00:00 are 30 hours.")
        return duration

    def prepare_value(self, value: Any) -> Any:
        return str(value).replace(" days, ", " ").replace(" day, ", " ") if isinstance(value, timedelta) else value


class Instant(forms.CharField):
    """ISO 8601, with an offset."""

    def clean(self, value: Any) -> datetime | None:
        text = super().clean(value)
        try:
            return datetime.fromisoformat(text) if text else None
        except ValueError:
            raise ValidationError("This is no instant; one is 2026-03-08T02:30:00+00:00.") from None

    def prepare_value(self, value: Any) -> Any:
        return value.isoformat() if isinstance(value, datetime) else value


class Json(forms.CharField):
    """A list or a dict; in a schedule that code made, other values stand as they are stored."""

    def clean(self, value: Any) -> Any:
        text = super().clean(value)
        try:
            return json.loads(text) if text else None
        except ValueError as error:
            raise ValidationError(f"This is no JSON: {error}.") from None
        except RecursionError:
            raise ValidationError("This is nested too deeply.") from None

    def prepare_value(self, value: Any) -> Any:
        return value if value is None or isinstance(value, str) else json.dumps(value)


def _optional(choices: Any) -> list[tuple[str, str]]:
    return [("", f"({next(iter(choices)).value})"), *((choice.value, choice.value) for choice in choices)]


class ScheduleForm(forms.Form):
    """`definition` and `given` are there when it is valid."""

    name = forms.CharField(max_length=140)
    task = forms.ChoiceField()
    cron = forms.CharField(
        required=False, max_length=500, help_text="Minute, hour, day of the month, month, day of the week."
    )
    timezone = forms.CharField(required=False, help_text="Of the expression, such as Europe/London.")
    every = Duration(required=False, help_text="Instead of an expression: 900 (seconds), 15:00, 1 06:00:00.")
    anchor = Instant(required=False, help_text="What a period counts from, such as 2026-03-08T02:30:00+00:00.")
    args = Json(required=False, help_text="A JSON list.")
    kwargs = Json(required=False, help_text="A JSON object.")
    queue_name = forms.CharField(required=False, label="Queue")
    priority = forms.IntegerField(required=False)
    misfire = forms.ChoiceField(required=False, choices=_optional(Misfire), label="Missed ticks")
    starting_deadline = Duration(required=False, help_text="How late a tick may start.")
    overlap = forms.ChoiceField(required=False, choices=_optional(Overlap))
    jitter = Duration(required=False, help_text="Each tick is put off by a stable share of it.")
    start = Instant(required=False)
    end = Instant(required=False)
    max_runs = forms.IntegerField(required=False)

    def __init__(self, *args: Any, name: str | None = None, **options: Any) -> None:
        super().__init__(*args, **options)
        self.given: dict[str, Any] = {}
        self.definition: Definition | None = None
        task = self.fields["task"]
        assert isinstance(task, forms.ChoiceField)
        task.choices = [(path, path) for path in sorted(registered)]
        if name is not None:
            self.fields["name"].disabled = True
            self.initial["name"] = name

    def clean(self) -> dict[str, Any]:
        cleaned: dict[str, Any] = super().clean() or {}
        if self.errors:
            return cleaned
        self.given = _filled(cleaned)
        try:
            self.definition = read_stored(cleaned["name"], self.given)
        except DelayedQError as error:
            raise ValidationError(str(error)) from None
        return cleaned


def _filled(cleaned: Mapping[str, Any]) -> dict[str, Any]:
    """Fields that were left blank are no keys."""
    return {key: value for key, value in cleaned.items() if key != "name" and value is not None and value != ""}


def is_editable(given: Mapping[str, Any]) -> bool:
    """False if its arguments have no plain JSON form, so that the form would change them."""
    try:
        return all(json.loads(json.dumps(given.get(key))) == given.get(key) for key in ("args", "kwargs"))
    except TypeError:
        return False
