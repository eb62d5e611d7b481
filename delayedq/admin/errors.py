"""The dead letters by error: which errors there are, how many of each, and what can be done to all of one."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlencode

from django import forms
from django.urls import path, reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from delayedq.admin.base import may, visible
from delayedq.admin.bulk import BulkAdmin
from delayedq.admin.group_names import name_of
from delayedq.admin.lists import tabs_of
from delayedq.admin.moments import when
from delayedq.admin.queues import points
from delayedq.core.fingerprints import LINE_LENGTH, class_of
from delayedq.core.limits import is_storable
from delayedq.core.masking import MASK
from delayedq.models import Outcome
from delayedq.operations.error_groups import BUCKETS, WIDTH, ErrorGroups, error_groups
from delayedq.operations.wording import grouped, span

if TYPE_CHECKING:
    from datetime import datetime

    from django.http import HttpRequest, HttpResponse
    from django.urls import URLPattern
    from django.utils.safestring import SafeString

    from delayedq.operations.error_groups import ErrorGroup


class ErrorFilter(forms.Form):
    q = forms.CharField(label=gettext_lazy("Error or task has"), required=False, max_length=LINE_LENGTH)
    class_name = forms.CharField(label=gettext_lazy("Class"), required=False, max_length=LINE_LENGTH)

    def found_in(self, groups: ErrorGroups) -> None:
        """Offer the classes of these groups, and the one in the address."""
        asked = self.data.get("class_name", "")
        names = sorted({*groups.classes, asked if is_storable(asked) else ""} - {""})
        choices = [("", gettext_lazy("any")), *((name, visible(name)) for name in names)]
        self.fields["class_name"].widget = forms.Select(choices=choices)


class GroupRow(NamedTuple):
    """An error group in the list. `query`: the filter of the history that has its dead letters, and no others."""

    name: str
    pattern: str
    kind: str
    size: str
    first: SafeString | str
    last: SafeString | str
    points: str
    trend: str
    query: str
    url: str
    latest_url: str


class ErrorPages(BulkAdmin):
    """The pages of errors beside the list of ended messages."""

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(self.errors_view)
        return [path("errors/", view, name="delayedq_finishedmessage_errors"), *super().get_urls()]

    def errors_view(self, request: HttpRequest) -> HttpResponse:
        """The first view of the dead letters."""
        now, asked = self.store.now(), ErrorFilter(request.GET)
        found = ErrorGroups([], 0, is_cut=False, classes=[])
        if asked.is_valid():
            given, reads = asked.cleaned_data, may(request, "view_payload")
            found = error_groups(self.store, now, text=given["q"], error_class=given["class_name"], search_errors=reads)
        asked.found_in(found)
        context = {
            "filter": asked,
            "tabs": tabs_of(request, self.store, now, "errors"),
            "rows": [_row(group, now, payload=may(request, "view_payload")) for group in found.groups],
            "more": found.more,
            "is_cut": found.is_cut,
            "actions": self.offered_actions(request),
        }
        return self.page(request, "errors.html", _("Dead letters by error"), context)


def query_of(fingerprint: int) -> str:
    """The filter of the history that selects the dead letters of an error group."""
    return urlencode({"outcome": Outcome.FAILED.value, "group": name_of(fingerprint)})


def _row(group: ErrorGroup, now: datetime, *, payload: bool) -> GroupRow:
    query, history = query_of(group.fingerprint), reverse("admin:delayedq_finishedmessage_changelist")
    name = class_of(group.pattern)
    return GroupRow(
        name=visible(name) or _("No error was recorded"),
        pattern=visible(group.pattern.removeprefix(name).removeprefix(":").strip()) if payload else MASK,
        kind=visible(group.kind),
        size=str(group.size),
        first=when(group.first_at, now),
        last=when(group.last_at, now),
        points=points(group.trend, max(group.trend)),
        trend=_trend(group),
        query=query,
        url=f"{history}?{query}",
        latest_url=reverse("admin:delayedq_finishedmessage_change", args=[group.id]),
    )


def _trend(group: ErrorGroup) -> str:
    number, window = sum(group.trend), span(timedelta(seconds=BUCKETS * WIDTH))
    words = ngettext("%(number)s in the last %(span)s", "%(number)s in the last %(span)s", number)
    return words % {"number": grouped(number), "span": window}
