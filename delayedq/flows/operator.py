"""Show flows to an operator: a list, one flow with its steps, and why a step waits."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from django.db.models import Count
from django.utils.translation import gettext as _

from delayedq.flows.rules import OPEN, RESULT, FlowState, StepState, critical_path, number_of, numbers, step_id
from delayedq.models import Flow, FlowMember, FlowStep
from delayedq.operations.wording import grouped

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import timedelta

    from delayedq.store.base import Store


class SeenFlow(NamedTuple):
    """A flow in a list. `steps`: how many it has; `ended`: how many of them have ended or were skipped."""

    flow: Flow
    steps: int
    ended: int


class SeenStep(NamedTuple):
    """A step of a flow. `counts`: of its members, by how they ended ("" for those that have not)."""

    number: int
    step: FlowStep
    after: tuple[int, ...]
    counts: dict[str, int]
    duration: timedelta | None
    is_critical: bool


#: A page of flows that are chosen by name or state looks at this many of the latest.
SEARCHED = 50_000


class FlowPage(NamedTuple):
    """`following`: the id before which the next page begins, None: there is none. `is_cut`: no more than SEARCHED flows
    were looked at.
    """

    flows: list[SeenFlow]
    following: int | None
    is_cut: bool = False


def page_of_flows(store: Store, before: int | None, limit: int, text: str = "", state: str = "") -> FlowPage:
    """The latest flows first, those before this id. `text`: has their name. `state`: a FlowState, "" for all."""
    rows = Flow.objects.using(store.alias).order_by("-id")
    rows = rows if before is None else rows.filter(id__lt=before)
    lowest = None
    if text or state:
        lowest = (rows.values_list("id", flat=True).first() or 0) - SEARCHED
        rows = rows.filter(id__gt=lowest, name__icontains=text)
    if state:
        rows = rows.filter(outcome="" if state == FlowState.RUNNING else state)
    found = _seen(store, list(rows[: limit + 1]))
    if len(found) > limit:
        return FlowPage(found[:limit], found[limit - 1].flow.pk)
    if lowest is None or not Flow.objects.using(store.alias).filter(id__lte=lowest).exists():
        return FlowPage(found, None)
    return FlowPage(found, lowest + 1, is_cut=True)


def _seen(store: Store, flows: list[Flow]) -> list[SeenFlow]:
    steps = FlowStep.objects.using(store.alias).filter(flow_id__in=[flow.pk for flow in flows])
    counted: dict[int, list[int]] = {}
    for flow_id, state, count in steps.values_list("flow_id", "state").annotate(number=Count("id")):
        found = counted.setdefault(flow_id, [0, 0])
        found[0] += count
        found[1] += 0 if state in OPEN else count
    return [SeenFlow(flow, *counted.get(flow.pk, [0, 0])) for flow in flows]


def steps_of(store: Store, flow: int) -> list[SeenStep]:
    """The steps of a flow in their order."""
    rows = list(FlowStep.objects.using(store.alias).filter(flow_id=flow).defer("calls").order_by("id"))
    after = {number_of(row.pk): numbers(row.after) for row in rows}
    ended = {number_of(row.pk): row.ended_at.timestamp() for row in rows if row.ended_at is not None}
    critical = critical_path(after, ended)
    counts: dict[int, dict[str, int]] = {}
    members = FlowMember.objects.using(store.alias).filter(
        step_id__gte=step_id(flow, 0), step_id__lt=step_id(flow + 1, 0)
    )
    for step, outcome, count in members.values_list("step_id", "outcome").annotate(number=Count("message_id")):
        counts.setdefault(step, {})[outcome or ""] = count
    return [
        SeenStep(number_of(row.pk), row, after[number_of(row.pk)], counts.get(row.pk, {}), _took(row), is_critical)
        for row in rows
        for is_critical in [number_of(row.pk) in critical]
    ]


def _took(row: FlowStep) -> timedelta | None:
    return None if row.ended_at is None or row.released_at is None else row.ended_at - row.released_at


def explain_step(step: SeenStep, steps: Iterable[SeenStep]) -> str:
    """Why a step does not run, or what it does, in one sentence."""
    waits_for = [one.step.name for one in steps if one.number in step.after and one.step.state in OPEN]
    match step.step.state:
        case StepState.WAITING if waits_for:
            return _("It waits for %(steps)s.") % {"steps": ", ".join(waits_for)}
        case StepState.WAITING:
            return _("All steps before it have ended: the next sweep of the lease keeper releases it.")
        case StepState.FILLING:
            return _("Its messages are being stored: %(number)s so far.") % {"number": grouped(step.step.size)}
        case StepState.RUNNING:
            words = _("%(living)s of its %(size)s messages have not ended.")
            return words % {"living": grouped(step.counts.get("", 0)), "size": grouped(step.step.size)}
        case StepState.SKIPPED:
            return _("It was skipped: %(why)s.") % {"why": _why_skipped(step.step.runs_when)}
    return _("It has ended.")


def _why_skipped(when: str) -> str:
    if when.startswith(RESULT):
        return _("a step before it has not succeeded, or its condition was not true")
    if when == "failed":
        return _("no step before it failed, or the flow was stopped")
    return _("a step before it has not succeeded, or the flow was stopped")
