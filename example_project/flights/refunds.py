"""Passengers of delayed flights ask for a refund: people decide, and a handler does so beside them (shadow mode)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django import forms

from delayedq.desk import NeedsPerson, Share, desk_task
from example_project.flights.models import Flight  # noqa: TC001 - tasks show the types of their arguments

#: After this delay a fare is paid back by rule.
ENOUGH = timedelta(hours=3)


class RefundForm(forms.Form):
    percent = forms.IntegerField(label="Refund", min_value=0, max_value=100, help_text="Percent of the fare.")


@desk_task(
    queue_name="refunds",
    form=RefundForm,
    mode="shadow",
    review=Share(0.2),
    due_in=timedelta(hours=8),
    required=0.95,
    blind=0.05,
)
def refund(flight: Flight, passenger: str, wrote: str = "") -> dict[str, Any]:  # noqa: ARG001 - people read it
    """The handler knows the delay, and nothing of what the passenger has written."""
    if flight.cancelled:
        raise NeedsPerson(f"{flight.code} was cancelled: {passenger} may have flown later.")
    return {"percent": 100 if flight.delay >= ENOUGH else 0}
