"""What the lists can be asked for, as forms: their values come from the address, so a bad one asks for nothing."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any

from django import forms
from django.core.exceptions import ValidationError
from django.utils import timezone

from delayedq.core.limits import KEY_LENGTH, NAME_LENGTH
from delayedq.models import Outcome
from delayedq.operations.selecting import EndedSelection, Selection
from delayedq.store.edits import Position, State
from delayedq.tasks import registered

if TYPE_CHECKING:
    from collections.abc import Iterable

    from delayedq.store.protocol import Store

STATES = [
    ("", "any"),
    (State.DUE.value, "due"),
    (State.SCHEDULED.value, "scheduled"),
    (State.RUNNING.value, "running"),
    (State.RETRYING.value, "retrying"),
    (State.LOST.value, "lost by its worker"),
]


class Moment(forms.DateTimeField):
    """In the time zone of the site; browsers offer a calendar for it."""

    widget = forms.DateTimeInput(attrs={"type": "datetime-local", "step": "1"}, format="%Y-%m-%dT%H:%M:%S")

    def prepare_value(self, value: Any) -> Any:
        """Links ask with an offset and microseconds, which the input of a browser does not take."""
        if isinstance(value, str):
            with suppress(ValidationError):
                value = self.to_python(value)
        return super().prepare_value(value)


class Until(Moment):
    """The whole of the second that it names, which is the least that the input of a browser can tell."""

    def clean(self, value: Any) -> Any:
        moment = super().clean(value)
        return moment and moment.replace(microsecond=999_999)


class Filter(forms.Form):
    q = forms.CharField(label="Key or id", required=False, strip=False, max_length=KEY_LENGTH)
    queue = forms.ChoiceField(required=False)
    kind = forms.ChoiceField(label="Task", required=False)
    since = Moment(label="From", required=False)
    until = Until(label="To", required=False)

    def __init__(self, data: Any, store: Store) -> None:
        super().__init__(data)
        queues = {lane.queue for lane in store.lanes()}
        self._offer("queue", queues)
        self._offer("kind", {*registered, *store.keyed_kinds()})

    def _offer(self, name: str, known: Iterable[str]) -> None:
        """What is known, and what was asked for: a queue that is empty now is still a fair question."""
        asked = self.data.get(name, "")[:NAME_LENGTH]
        names = sorted({*known, asked} - {""})
        self.fields[name].choices = [("", "any"), *((value, value) for value in names)]  # type: ignore[attr-defined]

    def asked(self) -> dict[str, Any]:
        """What was asked for and can be."""
        self.is_valid()
        return {name: value for name, value in self.cleaned_data.items() if value not in ("", None)}


class LiveFilter(Filter):
    state = forms.ChoiceField(choices=STATES, required=False)

    field_order = ("q", "state")

    def selection(self, as_of: datetime) -> Selection:
        asked = self.asked()
        asked.pop("q", None)
        if "state" in asked:
            asked["state"] = State(asked["state"])
        return Selection(as_of=as_of, **asked)


class EndedFilter(Filter):
    outcome = forms.ChoiceField(choices=[("", "any"), *Outcome.choices], required=False)

    field_order = ("q", "outcome")

    def selection(self) -> EndedSelection:
        asked = self.asked()
        return EndedSelection(key=asked.pop("q", None), **asked)


# Positions in the address


def position_text(position: Position) -> str:
    return f"{position.at.isoformat()}~{position.id}"


def position_in(text: str) -> Position | None:
    """None for whatever is no position."""
    at, _, id_ = text.partition("~")
    try:
        moment = datetime.fromisoformat(at)
        position = Position(moment, int(id_))
    except ValueError:
        return None
    return position if timezone.is_aware(moment) and 0 <= position.id < 2**63 else None
