"""The filters of the lists, as forms. Their values come from the URL; a filter that is not valid selects nothing."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from django import forms
from django.core.exceptions import ValidationError
from django.http import QueryDict
from django.utils.translation import gettext_lazy as _
from django.utils.translation import pgettext_lazy

from delayedq.admin.marks import STATES as STATE_NAMES
from delayedq.admin.moments import Moment, Until
from delayedq.admin.names import FEW, Suggested, kinds, queues, workers
from delayedq.core.bounds import KEY_LENGTH, NAME_LENGTH, is_storable
from delayedq.core.errors import LINE_LENGTH, class_of
from delayedq.models import Outcome
from delayedq.operations.browsing import EndedSelection, Selection
from delayedq.operations.group_names import fingerprint_of
from delayedq.operations.wording import exact, visible
from delayedq.sql.states import MessageState
from delayedq.store import operator_store
from delayedq.tasks import registered

if TYPE_CHECKING:
    from collections.abc import Collection

    from delayedq.store.base import Store

#: What the address of a list has beside its filters. (`e` is the admin's own.)
NO_FILTERS = {"after", "e"}
ANY = ("", pgettext_lazy("filter", "any"))
STATES = [
    ANY,
    (MessageState.DUE.value, pgettext_lazy("state", "due")),
    (MessageState.SCHEDULED.value, pgettext_lazy("state", "scheduled")),
    (MessageState.RUNNING.value, pgettext_lazy("state", "running")),
    (MessageState.RETRYING.value, pgettext_lazy("state", "retrying")),
    (MessageState.PAUSED.value, _("due, but paused")),
    (MessageState.LOST.value, _("lost by its worker")),
]
OUTCOMES = [ANY, *((outcome.value, STATE_NAMES[outcome.value]) for outcome in Outcome)]


class ListFilter(forms.Form):
    """The filter of a list: `q` is the search, what else is visible stands in a panel that can be folded."""

    #: The field that tabs choose; "": none. Where a tab is chosen, the panel does not have it.
    tab = ""

    @property
    def is_panel_used(self) -> bool:
        """Whether a filter of the panel is set, or is wrong: then the panel is open."""
        names = {field.name for field in self.visible_fields()} - {"q", self.tab}
        return bool(self.errors) or any(self.data.get(name) for name in names)

    def shown(self, name: str) -> str:
        """What a filter asks for: the label of a choice, a time with its zone, else what was entered."""
        value = self.data.get(name, "")
        if isinstance(moment := self.cleaned_data.get(name), datetime):
            return exact(moment)
        return visible(str(dict(getattr(self.fields[name], "choices", ())).get(value, value)))

    @property
    def problems(self) -> list[str]:
        """What is wrong with what was given; nothing if it is valid."""
        return [
            f"{self.fields[name].label or name.capitalize()}: {problem}" if name in self.fields else str(problem)
            for name, found in self.errors.items()
            for problem in found
        ]


class FilterForm(ListFilter):
    q = forms.CharField(
        label=_("Key or id"),
        required=False,
        strip=False,
        max_length=KEY_LENGTH,
        widget=forms.TextInput(attrs={"placeholder": _("or args.name:value")}),
    )
    queue = forms.ChoiceField(label=_("Queue"), required=False)
    kind = forms.ChoiceField(label=_("Task"), required=False)
    priority = forms.IntegerField(label=_("Priority"), required=False, min_value=-(2**15), max_value=2**15 - 1)
    worker = forms.ChoiceField(label=_("Worker"), required=False)
    since = Moment(label=pgettext_lazy("first time", "From"), required=False)
    until = Until(label=pgettext_lazy("last time", "To"), required=False)

    def __init__(self, data: Any, store: Store) -> None:
        super().__init__(data)
        self.store = store
        self._offer("queue", queues(store))
        self._offer("worker", workers(store))
        self._offer("kind", registered if len(registered) > FEW else kinds(store))

    def _offer(self, name: str, known: Collection[str]) -> None:
        """Set the choices: the known names and the one in the URL, which may be of a queue that is empty now.

        Of more than FEW, it is a text with suggestions.
        """
        if len(known) > FEW:
            given = {field: self.data[field] for field in self.fields if self.data.get(field)}
            self.fields[name] = forms.CharField(
                label=self.fields[name].label,
                required=False,
                strip=False,
                max_length=NAME_LENGTH,
                widget=Suggested(name, given),
            )
            return
        asked = self.data.get(name, "")
        names = sorted({*known, asked if len(asked) <= NAME_LENGTH and is_storable(asked) else ""} - {""})
        self.fields[name].choices = [ANY, *((value, visible(value)) for value in names)]  # type: ignore[attr-defined]

    def clean(self) -> dict[str, Any]:
        """A name that no filter has, or that was given twice, would select more than was meant."""
        given = self.data.lists() if isinstance(self.data, QueryDict) else ()
        for name, values in given:
            if name not in {*self.fields, *NO_FILTERS}:
                self.add_error(None, _("There is no filter %(name)s.") % {"name": visible(name[:NAME_LENGTH])})
            elif len(values) > 1:
                self.add_error(None, _("The filter %(name)s is given more than once.") % {"name": visible(name)})
        cleaned: dict[str, Any] = super().clean() or {}
        return cleaned

    def asked(self) -> dict[str, Any]:
        """The values that were given, by field. Raises ValidationError, whose messages say what is wrong."""
        if not self.is_valid():
            raise ValidationError(self.problems)
        return {name: value for name, value in self.cleaned_data.items() if value not in ("", None)}

    @property
    def said(self) -> list[tuple[str, str]]:
        """The name and value of each filter that is set, to be shown."""
        self.full_clean()
        return [(str(self[name].label), self.shown(name)) for name in self.fields if self.data.get(name)]


class LiveFilter(FilterForm):
    tab = "state"
    state = forms.ChoiceField(label=_("State"), choices=STATES, required=False)

    field_order = ("q", "state")

    def selection(self, as_of: datetime) -> Selection:
        asked = self.asked()
        if "state" in asked:
            asked["state"] = MessageState(asked["state"])
        return Selection(as_of=as_of, key=asked.pop("q", None), **asked)


class EndedFilter(FilterForm):
    outcome = forms.ChoiceField(label=_("Outcome"), choices=OUTCOMES, required=False)
    error = forms.CharField(label=_("Error has"), required=False, max_length=LINE_LENGTH)
    group = forms.RegexField("^[0-9a-f]{16}$", label=_("Error group"), required=False, widget=forms.HiddenInput)

    field_order = ("q", "outcome", "error")

    def __init__(self, data: Any, store: Store) -> None:
        super().__init__(data, store)
        self.tab = "outcome" if self.data.get("outcome") == Outcome.FAILED else ""  # of the outcomes, these have a tab

    def shown(self, name: str) -> str:
        """An error group by its error: the class that the errors of the group have, and the task of the latest."""
        group = self.cleaned_data.get(name) if name == "group" else None
        if not group:
            return super().shown(name)
        fingerprint = fingerprint_of(group)
        found = operator_store(self.store.alias).error_groups.newest([] if fingerprint is None else [fingerprint])
        known = [f"{class_of(one.error) or _('No error was recorded')}, {one.kind}" for one in found.values()]
        return visible(known[0]) if known else super().shown(name)

    def selection(self) -> EndedSelection:
        """Raises ValidationError."""
        asked = self.asked()
        group = asked.pop("group", None)
        fingerprint = None if group is None else fingerprint_of(group)
        return EndedSelection(key=asked.pop("q", None), fingerprint=fingerprint, **asked)
