"""The form of a schedule of the database: texts to the keys of its definition, checked as those of the settings."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from django import forms
from django.core.exceptions import ValidationError
from django.utils.dateparse import parse_duration
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from delayedq.admin.choices import queue_field
from delayedq.cron.definitions import read_stored
from delayedq.cron.ticks import Misfire, Overlap
from delayedq.exceptions import DelayedQError
from delayedq.operations.wording import visible
from delayedq.tasks import registered

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from delayedq.cron.definitions import Definition


class Duration(forms.CharField):
    """Such as 900, 15:00 or 1 06:00:00."""

    def clean(self, value: Any) -> timedelta | None:
        text = super().clean(value)
        try:
            duration = parse_duration(text) if text else None
        except OverflowError:
            raise ValidationError(_("This is longer than all time that can be stored.")) from None
        if text and duration is None:
            raise ValidationError(
                _("This is no duration; 900 are seconds, 15:00 are minutes, 1 06:00:00 are 30 hours.")
            )
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
            raise ValidationError(_("This is no instant; one is 2026-03-08T02:30:00+00:00.")) from None

    def prepare_value(self, value: Any) -> Any:
        return value.isoformat() if isinstance(value, datetime) else value


class Json(forms.CharField):
    """A list or a dict; in a schedule that code made, other values stand as they are stored."""

    def clean(self, value: Any) -> Any:
        text = super().clean(value)
        try:
            return json.loads(text) if text else None
        except ValueError as error:
            raise ValidationError(_("This is no JSON: %(error)s.") % {"error": error}) from None
        except RecursionError:
            raise ValidationError(_("This is nested too deeply.")) from None

    def prepare_value(self, value: Any) -> Any:
        return value if value is None or isinstance(value, str) else json.dumps(value)


def _optional(choices: Any) -> list[tuple[str, str]]:
    return [("", f"({next(iter(choices)).value})"), *((choice.value, choice.value) for choice in choices)]


class ScheduleForm(forms.Form):
    """`definition` and `given` are there when it is valid."""

    name = forms.CharField(label=gettext_lazy("Name"), max_length=140)
    task = forms.ChoiceField(label=gettext_lazy("Task"))
    cron = forms.CharField(
        label="Cron",
        required=False,
        max_length=500,
        help_text=gettext_lazy("Minute, hour, day of the month, month, day of the week."),
    )
    timezone = forms.CharField(
        label=gettext_lazy("Time zone"),
        required=False,
        help_text=gettext_lazy("The zone of the expression, such as Europe/London."),
    )
    every = Duration(
        label=gettext_lazy("Every"),
        required=False,
        help_text=gettext_lazy("Instead of an expression: 900 (seconds), 15:00, 1 06:00:00."),
    )
    anchor = Instant(
        label=gettext_lazy("Anchor"),
        required=False,
        help_text=gettext_lazy("What a period counts from, such as 2026-03-08T02:30:00+00:00."),
    )
    args = Json(label=gettext_lazy("Arguments by position"), required=False, help_text=gettext_lazy("A JSON list."))
    kwargs = Json(label=gettext_lazy("Arguments by name"), required=False, help_text=gettext_lazy("A JSON object."))
    queue_name = forms.CharField(label=gettext_lazy("Queue"), required=False)
    priority = forms.IntegerField(label=gettext_lazy("Priority"), required=False)
    misfire = forms.ChoiceField(label=gettext_lazy("Missed ticks"), required=False, choices=_optional(Misfire))
    starting_deadline = Duration(
        label=gettext_lazy("Starting deadline"), required=False, help_text=gettext_lazy("How late a tick may start.")
    )
    overlap = forms.ChoiceField(label=gettext_lazy("Overlap"), required=False, choices=_optional(Overlap))
    jitter = Duration(
        label=gettext_lazy("Jitter"),
        required=False,
        help_text=gettext_lazy("Each tick is delayed by a fixed share of this time."),
    )
    start = Instant(label=gettext_lazy("Start"), required=False)
    end = Instant(label=gettext_lazy("End"), required=False)
    max_runs = forms.IntegerField(label=gettext_lazy("Runs at most"), required=False)

    def __init__(self, *args: Any, name: str | None = None, **options: Any) -> None:
        super().__init__(*args, **options)
        self.given: dict[str, Any] = {}
        self.definition: Definition | None = None
        task = self.fields["task"]
        assert isinstance(task, forms.ChoiceField)
        task.choices = [(path, path) for path in sorted(registered)]
        self.fields["queue_name"] = queue_field(gettext_lazy("Queue"), required=False)
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
            self.add_error(field_of(str(error), self.fields), visible(str(error)))
        return cleaned


def field_of(error: str, names: Iterable[str]) -> str | None:
    """The field that an error is about: the option that it names first; None: it names none."""
    places = {error.find(f"'{name}'"): name for name in names if f"'{name}'" in error}
    return places[min(places)] if places else None


def _filled(cleaned: Mapping[str, Any]) -> dict[str, Any]:
    """Fields that were left blank are no keys."""
    return {key: value for key, value in cleaned.items() if key != "name" and value is not None and value != ""}


def is_editable(given: Mapping[str, Any]) -> bool:
    """False if its arguments have no plain JSON form, so that the form would change them."""
    try:
        return all(json.loads(json.dumps(given.get(key))) == given.get(key) for key in ("args", "kwargs"))
    except TypeError:
        return False
