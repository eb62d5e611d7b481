"""The bulk actions: each with the permission it needs and a form for its parameters."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from django import forms
from django.core.exceptions import ValidationError
from django.utils.translation import gettext, pgettext_lazy
from django.utils.translation import gettext_lazy as _

from delayedq.admin.choices import queue_field
from delayedq.admin.moments import Moment
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
from delayedq.cron.operator import SCHEDULE
from delayedq.exceptions import InvalidMessage
from delayedq.operations.dead_letters import DISCARD
from delayedq.operations.edits import CANCEL, PAUSE, RESCHEDULE, RETRY
from delayedq.operations.sending import ARGUMENTS, SEND
from delayedq.operations.wording import visible
from delayedq.store.offers import check_name
from delayedq.store.protocol import BARE

if TYPE_CHECKING:
    from datetime import datetime

    from django_stubs_ext import StrOrPromise

    from delayedq.core.edits import Change, LanePosition

UNITS = {"seconds": 1, "minutes": 60, "hours": 3_600, "days": 86_400}

UNIT_NAMES = [("seconds", _("seconds")), ("minutes", _("minutes")), ("hours", _("hours")), ("days", _("days"))]

#: The longest shift or spread, in seconds.
CENTURY = 36_525 * UNITS["days"]


class ActionForm(forms.Form):
    """The form of an action without parameters; base of the others."""

    def change(self, now: datetime) -> Change | None:  # noqa: ARG002
        """The change to make to each message; None if the action is not a change of time, queue or priority."""
        return None

    @classmethod
    def present(cls, place: LanePosition) -> dict[str, Any]:  # noqa: ARG003
        """What the form shows at first: the present values of a message."""
        return {}


class RunNowForm(ActionForm):
    def change(self, now: datetime) -> Change:  # noqa: ARG002
        return RunNow()


class RescheduleForm(ActionForm):
    at = Moment(label=_("New time"))

    @classmethod
    def present(cls, place: LanePosition) -> dict[str, Any]:
        return {"at": place.scheduled_at}

    def change(self, now: datetime) -> Change:  # noqa: ARG002
        return Reschedule(self.cleaned_data["at"])


class PeriodForm(ActionForm):
    amount = forms.FloatField(label=_("Amount"))
    unit = forms.ChoiceField(label=_("Unit"), choices=UNIT_NAMES, initial="minutes")

    def clean(self) -> dict[str, Any]:
        cleaned: dict[str, Any] = super().clean() or {}
        seconds = cleaned.get("amount", 0.0) * UNITS[cleaned.get("unit", "seconds")]
        if not abs(seconds) <= CENTURY:
            raise ValidationError(_("That is more than a century."))
        cleaned["period"] = timedelta(seconds=seconds)
        return cleaned


class ShiftForm(PeriodForm):
    amount = forms.FloatField(label=_("Later by"), initial=0, help_text=_("Less than 0: earlier."))

    def change(self, now: datetime) -> Change:  # noqa: ARG002
        return Shift(self.cleaned_data["period"])


class SpreadForm(PeriodForm):
    start = Moment(label=pgettext_lazy("first time", "From"), required=False, help_text=_("Empty: now."))
    amount = forms.FloatField(label=pgettext_lazy("period", "Over"), min_value=0, initial=0)
    jitter = forms.IntegerField(
        label=_("Jitter"),
        min_value=0,
        max_value=100,
        initial=10,
        help_text=_("Percent of the period by which each time may be moved at random."),
    )

    field_order = ("start", "amount", "unit", "jitter")

    def change(self, now: datetime) -> Spread:
        return Spread(self.cleaned_data["start"] or now, self.cleaned_data["period"], self.cleaned_data["jitter"] / 100)


class PriorityForm(ActionForm):
    priority = forms.IntegerField(
        label=_("Priority"),
        min_value=LOWEST_PRIORITY,
        max_value=HIGHEST_PRIORITY,
        help_text=_("Higher runs first."),
    )

    @classmethod
    def present(cls, place: LanePosition) -> dict[str, Any]:
        return {"priority": place.priority}

    def change(self, now: datetime) -> Change:  # noqa: ARG002
        return Prioritize(self.cleaned_data["priority"])


class QueueForm(ActionForm):
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.fields["queue"] = queue_field(_("Queue"))

    @classmethod
    def present(cls, place: LanePosition) -> dict[str, Any]:
        return {"queue": place.queue}

    def clean_queue(self) -> str:
        queue: str = self.cleaned_data["queue"]
        try:
            check_name("queue", queue)
        except InvalidMessage as error:
            raise ValidationError(visible(str(error))) from None
        if BARE in queue:
            raise ValidationError(
                gettext("A queue of tasks has no %(mark)s in its name; that marks a bare queue.") % {"mark": BARE}
            )
        return queue

    def change(self, now: datetime) -> Change:  # noqa: ARG002
        return Reroute(self.cleaned_data["queue"])


class RetryForm(SpreadForm):
    amount = forms.FloatField(
        label=pgettext_lazy("period", "Over"), min_value=0, initial=0, help_text=_("0: all at once.")
    )


RUN_NOW = "run_now"

KEEP = _("Leave them as they are")


@dataclass(frozen=True, slots=True)
class Action:
    name: str
    label: StrOrPromise
    permission: str
    form: type[ActionForm]
    #: Which kind of edit it is, as in `Edit.action`.
    does: str = RESCHEDULE
    #: The buttons of the confirmation: to do it, and to leave everything as it is.
    submit: StrOrPromise = ""
    keep: StrOrPromise = KEEP
    #: Whether messages do not run any more because of it; its button is red.
    is_destructive: bool = False

    @property
    def button(self) -> StrOrPromise:
        return self.submit or self.label


LIVE_ACTIONS = {
    action.name: action
    for action in (
        Action(RUN_NOW, _("Run now"), "reschedule_message", RunNowForm, submit=_("Run messages now")),
        Action(
            "reschedule",
            _("Reschedule to a time"),
            "reschedule_message",
            RescheduleForm,
            submit=_("Reschedule messages"),
        ),
        Action(
            "shift",
            _("Shift by an amount"),
            "reschedule_message",
            ShiftForm,
            submit=_("Shift messages"),
        ),
        Action(
            "spread",
            _("Spread over a period"),
            "reschedule_message",
            SpreadForm,
            submit=_("Spread messages"),
        ),
        Action("priority", _("Change priority"), "reschedule_message", PriorityForm),
        Action(
            "queue",
            _("Move to another queue"),
            "reschedule_message",
            QueueForm,
            submit=_("Move messages"),
        ),
        Action(
            "cancel",
            pgettext_lazy("messages", "Cancel"),
            "cancel_message",
            ActionForm,
            CANCEL,
            submit=_("Cancel messages"),
            keep=_("Keep them"),
            is_destructive=True,
        ),
    )
}

ENDED_ACTIONS = {
    "retry": Action("retry", _("Retry"), "retry_message", RetryForm, RETRY, submit=_("Retry dead letters")),
    "discard": Action(
        "discard",
        _("Discard"),
        "discard_message",
        ActionForm,
        DISCARD,
        submit=_("Discard dead letters"),
        keep=_("Keep them"),
        is_destructive=True,
    ),
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
    PAUSE: "pause_queue",
}
