"""What flows add to the life of a message: its end may end a step, and release others."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from django.db.models import Exists, OuterRef, Q

from delayedq.conf import get_settings
from delayedq.core.metadata import FLOW
from delayedq.flows.ending import end_members, in_flows, live_again, steps_that_go_on
from delayedq.flows.members_sql import UNNEEDED
from delayedq.flows.rules import FlowState, step_of
from delayedq.flows.sweeping import forget_flows
from delayedq.store.feature import Feature, Fused, register
from delayedq.store.sweeps import Swept, register_sweep

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from typing import Any

    from delayedq.store.base import Store
    from delayedq.store.feature import RevivedMessage
    from delayedq.store.protocol import Settled, Transition


class FlowsFeature(Feature):
    """Messages whose metadata name a flow and a step of it."""

    marks: ClassVar[Q | None] = Q(metadata__contains=f'"{FLOW}"')
    may_offer: ClassVar[bool] = True

    def concerned(self, transitions: Sequence[Transition]) -> Sequence[Transition]:
        return in_flows(transitions)

    def settled(self, store: Store, transitions: Sequence[Transition], settled: Settled) -> bool:
        return end_members(store, in_flows(transitions), settled)

    def fused(self, transitions: Sequence[Transition]) -> Fused | None:
        """A large batch of members, which can't end their steps."""
        if steps := steps_that_go_on(in_flows(transitions)):
            from delayedq.flows.postgresql import SETTLE_MEMBERS_AND_CLAIM, of_steps

            return Fused(SETTLE_MEMBERS_AND_CLAIM, of_steps(steps))
        return None

    def revived(self, store: Store, ids: Collection[int], marked: Sequence[RevivedMessage]) -> None:
        del ids
        if members := [one.id for one in marked if step_of(one.metadata) is not None]:
            live_again(store, members)

    def unneeded(self, alias: str) -> str:
        from delayedq.models import Flow  # features are registered before the models are loaded

        return UNNEEDED if Flow.objects.using(alias).filter(ended_at=None).exists() else ""

    def needed_history(self, alias: str) -> Q | None:
        """The messages of flows that have not ended."""
        return _of_flows(alias, Q(ended_at=None))

    def needed_results(self, alias: str) -> Q | None:
        """Those of flows that have not succeeded: their retry goes on with them."""
        return _of_flows(alias, ~Q(outcome=FlowState.SUCCEEDED))


def _of_flows(alias: str, condition: Q) -> Q:
    from delayedq.models import Flow, FlowMember, FlowStep

    flows = Flow.objects.using(alias).filter(condition).values("id")
    steps = FlowStep.objects.using(alias).filter(flow_id__in=flows).values("id")
    members = FlowMember.objects.using(alias).filter(message_id=OuterRef("id"), step_id__in=steps)
    return Q(metadata__contains=f'"{FLOW}":') & Q(Exists(members))


def _forget_flows(store: Store, after: Any) -> Swept:
    retention = get_settings().RETENTION
    return Swept(0, None) if retention is None else forget_flows(store, retention, after)


register(FlowsFeature())
register_sweep(_forget_flows)
