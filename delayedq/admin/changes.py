"""The bulk actions: each with the permission it needs and a form for its parameters."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from django import forms
from django.core.exceptions import ValidationError

from delayedq.admin.filters import Moment
from delayedq.core.edits import (
    HIGHEST_PRIORITY,
    LOWEST_PRIORITY,
    Prioritize,
    Reroute,
    Reschedule,
    RunNow,
    Shift,
    Spread,
)
from delayedq.core.limits import NAME_LENGTH
from delayedq.exceptions import InvalidMessage
from delayedq.operations.arguments import ARGUMENTS
from delayedq.operations.discarding import DISCARD
from delayedq.operations.edits import CANCEL, RESCHEDULE, RETRY
from delayedq.operations.schedule_edits import SCHEDULE
from delayedq.operations.sending import SEND
from delayedq.operations.wording import span
from delayedq.store.offers import check_name
from delayedq.store.protocol import BARE

if TYPE_CHECKING:
    from datetime import datetime

    from delayedq.core.edits import Change

UNITS = {"seconds": 1, "minutes": 60, "hours": 3_600, "days": 86_400}
#: The longest shift or spread, in seconds.
CENTURY = 36_525 * UNITS["days"]


class Nothing(forms.Form):
    """The form of an action without parameters; base of the others."""

    def change(self, now: datetime) -> Change | None:  # noqa: ARG002
        """The change to make to each message; None if the action is not a change of time, queue or priority."""
        return None

    def says(self) -> str:
        """The parameters in words, to follow the `verb` of the action: "2 h later"."""
        return ""


class RunNowForm(Nothing):
    def change(self, now: datetime) -> Change:  # noqa: ARG002
        return RunNow()


class RescheduleForm(Nothing):
    at = Moment(label="New time")

    def change(self, now: datetime) -> Change:  # noqa: ARG002
        return Reschedule(self.cleaned_data["at"])

    def says(self) -> str:
        return f"to {self.cleaned_data['at']:%Y-%m-%d %H:%M:%S %Z}"


class Period(Nothing):
    amount = forms.FloatField(label="Amount")
    unit = forms.ChoiceField(choices=[(name, name) for name in UNITS], initial="minutes")

    def clean(self) -> dict[str, Any]:
        cleaned: dict[str, Any] = super().clean() or {}
        seconds = cleaned.get("amount", 0.0) * UNITS[cleaned.get("unit", "seconds")]
        if not abs(seconds) <= CENTURY:
            raise ValidationError("That is more than a century.")
        cleaned["period"] = timedelta(seconds=seconds)
        return cleaned


class ShiftForm(Period):
    amount = forms.FloatField(label="Later by", help_text="Less than 0: earlier.")

    def change(self, now: datetime) -> Change:  # noqa: ARG002
        return Shift(self.cleaned_data["period"])

    def says(self) -> str:
        period = self.cleaned_data["period"]
        return f"{span(period)} {'earlier' if period < timedelta(0) else 'later'}"


class SpreadForm(Period):
    start = Moment(label="From", required=False, help_text="Empty: now.")
    amount = forms.FloatField(label="Over", min_value=0)
    jitter = forms.IntegerField(
        label="Jitter",
        min_value=0,
        max_value=100,
        initial=10,
        help_text="Percent of the period by which each time may be moved at random.",
    )

    field_order = ("start", "amount", "unit", "jitter")

    def change(self, now: datetime) -> Spread:
        return Spread(self.cleaned_data["start"] or now, self.cleaned_data["period"], self.cleaned_data["jitter"] / 100)

    def says(self) -> str:
        start = self.cleaned_data["start"]
        begin = f"{start:%Y-%m-%d %H:%M:%S %Z}" if start else "now"
        return f"over {span(self.cleaned_data['period'])} from {begin}"


class PriorityForm(Nothing):
    priority = forms.IntegerField(min_value=LOWEST_PRIORITY, max_value=HIGHEST_PRIORITY, help_text="Higher runs first.")

    def change(self, now: datetime) -> Change:  # noqa: ARG002
        return Prioritize(self.cleaned_data["priority"])

    def says(self) -> str:
        return f"to {self.cleaned_data['priority']}"


class QueueForm(Nothing):
    queue = forms.CharField(max_length=NAME_LENGTH)

    def clean_queue(self) -> str:
        queue: str = self.cleaned_data["queue"]
        try:
            check_name("queue", queue)
        except InvalidMessage as error:
            raise ValidationError(str(error)) from None
        if BARE in queue:
            raise ValidationError(f"A queue of tasks has no {BARE} in its name; that marks a bare queue.")
        return queue

    def change(self, now: datetime) -> Change:  # noqa: ARG002
        return Reroute(self.cleaned_data["queue"])

    def says(self) -> str:
        return f"to {self.cleaned_data['queue']}"


class RetryForm(SpreadForm):
    amount = forms.FloatField(label="Over", min_value=0, initial=0, help_text="0: all at once.")


@dataclass(frozen=True, slots=True)
class Action:
    name: str
    label: str
    permission: str
    form: type[Nothing]
    #: Which kind of edit it is, as in `Edit.action`.
    does: str = RESCHEDULE
    #: Replaces the label in a description with parameters; empty: the label.
    verb: str = ""

    def described(self, form: Nothing) -> str:
        """The action with its parameters, such as "Shift 2 h later"."""
        return f"{self.verb or self.label} {form.says()}".strip()


LIVE_ACTIONS = {
    action.name: action
    for action in (
        Action("run_now", "Run now", "reschedule_message", RunNowForm),
        Action("reschedule", "Reschedule to a time", "reschedule_message", RescheduleForm, verb="Reschedule"),
        Action("shift", "Shift by an amount", "reschedule_message", ShiftForm, verb="Shift"),
        Action("spread", "Spread over a period", "reschedule_message", SpreadForm, verb="Spread"),
        Action("priority", "Change priority", "reschedule_message", PriorityForm),
        Action("queue", "Move to another queue", "reschedule_message", QueueForm, verb="Move"),
        Action("cancel", "Cancel", "cancel_message", Nothing, CANCEL),
    )
}
ENDED_ACTIONS = {
    "retry": Action("retry", "Retry", "retry_message", RetryForm, RETRY),
    "discard": Action("discard", "Discard", "discard_message", Nothing, DISCARD),
}

#: The permission needed to undo an edit, by its `Edit.action`.
TO_UNDO = {
    RESCHEDULE: "reschedule_message",
    CANCEL: "cancel_message",
    RETRY: "retry_message",
    SCHEDULE: "edit_schedule",
    ARGUMENTS: "edit_payload",
    DISCARD: "discard_message",
    SEND: "send_message",
}
