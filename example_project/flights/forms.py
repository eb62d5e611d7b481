from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django import forms
from django.core.exceptions import ValidationError
from django.utils import timezone

from example_project.flights.models import Flight

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime


class UpperCaseField(forms.CharField):
    def to_python(self, value: Any) -> str:
        return (super().to_python(value) or "").upper()


class FutureField(forms.DateTimeField):
    widget = forms.DateTimeInput(attrs={"type": "datetime-local"}, format="%Y-%m-%dT%H:%M")

    def validate(self, value: datetime | None) -> None:
        super().validate(value)
        if value and value <= timezone.now():
            raise ValidationError("This time is in the past.")


class FlightForm(forms.ModelForm):  # type: ignore[type-arg]  # not generic at run time
    class Meta:
        model = Flight
        fields = ("carrier", "number", "origin", "destination", "scheduled_departure")
        field_classes = {  # noqa: RUF012
            "carrier": UpperCaseField,
            "origin": UpperCaseField,
            "destination": UpperCaseField,
            "scheduled_departure": FutureField,
        }
        help_texts = {  # noqa: RUF012
            "carrier": "UA, B6, ...",
            "origin": "EWR, JFK or LGA",
            "scheduled_departure": "New York time",
        }

    def clean(self) -> None:
        super().clean()
        if departure := self.cleaned_data.get("scheduled_departure"):
            self.instance.day = timezone.localdate(departure)

    def validate_unique(self) -> None:
        """Check `day` too: it is part of the unique constraint but not a field of this form."""
        super().validate_unique()
        try:
            self.instance.validate_constraints()
        except ValidationError as error:
            self.add_error(None, error)


class ChangeForm(forms.Form):
    """A change of a flight that has not left yet."""

    def __init__(self, flight: Flight, data: Mapping[str, Any] | None = None) -> None:
        super().__init__(data, initial={"departure": flight.expected_departure})
        self.flight = flight

    def clean(self) -> None:
        if self.flight.cancelled:
            raise ValidationError(f"{self.flight} was cancelled.")
        if self.flight.has_left:
            raise ValidationError(f"{self.flight} has left.")


class DelayForm(ChangeForm):
    departure = FutureField(label="New departure", help_text="New York time")


class CancelForm(ChangeForm):
    """A form without fields: only the button."""
