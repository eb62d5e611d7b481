"""Flows: a list, and a page for each with the picture of its graph; cancel and retry."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from django import forms
from django.contrib import admin, messages
from django.http import Http404
from django.urls import path, reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from delayedq.admin.ask import Ask, AskingAdmin, Reply
from delayedq.admin.base import may
from delayedq.admin.filters import ANY, ListFilter
from delayedq.admin.lists import PER_PAGE, chips_of, paging
from delayedq.admin.marks import STATES
from delayedq.core.bounds import NAME_LENGTH
from delayedq.flows.operator import FlowPage, explain_step, page_of_flows, steps_of
from delayedq.flows.result import cancel_flow, retry_flow
from delayedq.flows.rules import HEIGHT, WIDTH, FlowState, picture
from delayedq.models import Flow, FlowMember, Message
from delayedq.operations.browsing import id_in
from delayedq.operations.wording import grouped, seconds, span, visible

if TYPE_CHECKING:
    from collections.abc import Mapping

    from django.http import HttpRequest, HttpResponse
    from django.urls import URLPattern

    from delayedq.flows.operator import SeenStep

MINUTE = timedelta(minutes=1)
#: Characters of a name that fit into a box.
FITS = 24


class StepRow(NamedTuple):
    """A step on the page of its flow, in the table and in the picture. `y` are those of its two lines of text."""

    name: str
    short: str
    kind: str
    state: str
    said: str
    after: str
    took: str
    is_critical: bool
    url: str
    x: int
    y: int


class FlowFilter(ListFilter):
    q = forms.CharField(label=gettext_lazy("Name has"), required=False, max_length=NAME_LENGTH)
    state = forms.ChoiceField(
        label=gettext_lazy("State"),
        required=False,
        choices=[ANY, *((one.value, STATES[one.value]) for one in FlowState)],
    )


@admin.register(Flow)
class FlowAdmin(AskingAdmin):
    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(self.act_view)
        return [path("<int:flow_id>/<str:verb>/now/", view, name="delayedq_flow_act"), *super().get_urls()]

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """The latest flows first; `after`: continue with those before this id."""
        self.demand_view(request)
        asked, found = FlowFilter(request.GET), FlowPage([], None)
        if asked.is_valid():
            given = asked.cleaned_data
            found = page_of_flows(self.store, id_in(request.GET.get("after", "")), PER_PAGE, given["q"], given["state"])
        context = {
            "filter": asked,
            "chips": chips_of(asked, request.GET, ""),
            "rows": [(one, visible(one.flow.name), one.flow.state) for one in found.flows],
            "now": self.store.now(),
            **paging(request, found.following, reached=f"#{found.following}" if found.is_cut else ""),
        }
        return self.page(request, "flows.html", _("Flows"), {**context, **(extra_context or {})})

    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",  # noqa: ARG002
        extra_context: Mapping[str, Any] | None = None,
    ) -> HttpResponse:
        self.demand_view(request)
        flow = self._known(id_in(object_id) or 0)
        steps = steps_of(self.store, flow.pk)
        drawn = picture({step.number: step.after for step in steps})
        first = self._first_messages(steps)
        # Each step of the critical path comes after the one before it, and has a higher number.
        critical = set(pairwise(sorted(step.number for step in steps if step.is_critical)))
        context = {
            "flow": flow,
            "state": flow.state,
            "rows": [_row(step, steps, first.get(step.step.pk, ""), *drawn.places[step.number]) for step in steps],
            "lines": [(line, (before, number) in critical) for before, number, line in drawn.lines],
            "size": (drawn.width, drawn.height),
            "box": (WIDTH, HEIGHT),
            "now": self.store.now(),
            "can_cancel": flow.state == FlowState.RUNNING and not flow.stopped_at and may(request, "cancel_message"),
            "can_retry": flow.state in {FlowState.FAILED, FlowState.CANCELLED} and may(request, "retry_message"),
        }
        return self.page(request, "flow.html", visible(flow.name), {**context, **(extra_context or {})})

    def _first_messages(self, steps: list[SeenStep]) -> dict[int, str]:
        """The addresses of the messages of steps that have one."""
        single = [step.step.pk for step in steps if sum(step.counts.values()) == 1]
        members = FlowMember.objects.using(self.store.alias).filter(step_id__in=single)
        ids = dict(members.values_list("step_id", "message_id"))
        live = set(Message.objects.using(self.store.alias).filter(id__in=ids.values()).values_list("id", flat=True))
        return {
            step: reverse(f"admin:delayedq_{'message' if id_ in live else 'finishedmessage'}_change", args=[id_])
            for step, id_ in ids.items()
        }

    def act_view(self, request: HttpRequest, flow_id: int, verb: str) -> HttpResponse:
        """Cancel the flow, or retry it."""
        self.demand_view(request)
        if verb not in {"cancel", "retry"}:
            raise Http404(_("There is nothing of this name to do to a flow."))
        self.demand(request, f"{verb}_message")
        flow = self._known(flow_id)
        said, label = _ASKED[verb]()
        back, keep = reverse("admin:delayedq_flow_change", args=[flow.pk]), _("Leave it as it is")
        ask = Ask(label, visible(flow.name), said, back, keep, is_destructive=verb == "cancel")
        return self.ask(request, ask, partial(self._act, flow, verb))

    def _act(self, flow: Flow, verb: str) -> Reply:
        if verb == "retry":
            number = retry_flow(self.store, flow.pk)
            told = _("Messages that run again: %(number)s.") % {"number": grouped(number)}
            recorded = f"Retry flow {flow.name} #{flow.pk}, messages that run again: {number}"
            return Reply(told, did=bool(number), of=flow, recorded=recorded)
        if cancel_flow(self.store, flow.pk):
            return Reply(_("The flow is cancelled."), of=flow, recorded=f"Cancel flow {flow.name} #{flow.pk}")
        return Reply(_("The flow had ended, or was cancelled before."), did=False, level=messages.WARNING)

    def _known(self, id_: int) -> Flow:
        flow = Flow.objects.using(self.store.alias).filter(pk=id_).first()
        if flow is None:
            raise Http404(_("There is no such flow."))
        return flow


def _row(step: SeenStep, steps: list[SeenStep], url: str, x: int, y: int) -> StepRow:
    names = {one.number: one.step.name for one in steps}
    name = visible(step.step.name)
    return StepRow(
        name=name,
        short=name if len(name) <= FITS else f"{name[: FITS - 1]}…",
        kind=visible(step.step.kind),
        state=step.step.state,
        said=visible(explain_step(step, steps)),
        after=visible(", ".join(names[number] for number in step.after)),
        took="" if step.duration is None else _took(step.duration),
        is_critical=step.is_critical,
        url=url,
        x=x,
        y=y,
    )


def _took(duration: timedelta) -> str:
    return span(duration) if duration >= MINUTE else seconds(duration.total_seconds())


def _asked_to_cancel() -> tuple[str, str]:
    said = _("What waits of it is cancelled, what runs is told, and nothing of it starts any more.")
    return said, _("Cancel the flow")


def _asked_to_retry() -> tuple[str, str]:
    said = _("What did not succeed of it runs again, and then what was skipped. What succeeded keeps its result.")
    return said, _("Retry the flow")


_ASKED = {"cancel": _asked_to_cancel, "retry": _asked_to_retry}
