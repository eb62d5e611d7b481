"""Results by reference: an argument that stands for the result of another step, which is read when its task starts."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from contextlib import suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from delayedq.core import serialization
from delayedq.core.serialization import NoAtom, dump_call, loads, text_of_call
from delayedq.exceptions import CannotRun, NotStorable, ReferenceGone
from delayedq.flows.rules import flow_of
from delayedq.store import served_store, store_for

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

logger = logging.getLogger("delayedq")

#: The tag of an argument that is the result of a step.
TAG = "step"
#: Messages in one question.
CHUNK = 5_000


#: Whether what is written now becomes a message of a flow, where a result may stand.
_in_a_flow: ContextVar[bool] = ContextVar("delayedq_in_a_flow", default=False)


def dump_step(args: tuple[object, ...], kwargs: Mapping[str, object], names: Sequence[str] = ()) -> str:
    """`dump_call` of a call in a flow: results of other steps may be among its arguments."""
    with suppress(NoAtom):
        return text_of_call(args, kwargs)  # there is no result among them
    before = _in_a_flow.set(True)
    try:
        return dump_call(args, kwargs, names)
    finally:
        _in_a_flow.reset(before)


class StepResult(ABC):
    """Stands for the result of a step in the arguments of another: its return value, or a list of those of a group."""

    @abstractmethod
    def reference(self) -> list[Any]:
        """The id of the step, whether it is a group, and the database."""


def _load(reference: list[Any]) -> Any:
    step, is_group, alias = reference
    if type(step) is not int:
        raise TypeError("the id of a step is an integer")
    values = results_of(step, alias)
    return values if is_group else next(iter(values), None)


def results_of(step: int, alias: str | None = None) -> list[Any]:
    """The return values of the members of a step (by its id), in their order; None for those that did not succeed.

    A step that was skipped has no members. Raises ReferenceGone if the step was deleted, or if the history of a member
    that succeeded was deleted or archived.
    """
    from delayedq.models import FlowMember, FlowStep  # stores are imported before the models are loaded

    alias = (store_for(alias) if alias else served_store()).alias
    members = FlowMember.objects.using(alias).filter(step_id=step).order_by("message_id")
    outcomes = dict(members.values_list("message_id", "outcome"))
    if not outcomes and not FlowStep.objects.using(alias).filter(id=step).exists():
        raise ReferenceGone(f"Step {step} is no longer in the database.")
    succeeded = [id_ for id_, outcome in outcomes.items() if outcome == "succeeded"]
    texts = _texts(alias, succeeded)
    if missing := len(succeeded) - len(texts):
        raise ReferenceGone(f"The results of {missing} messages of step {step} are no longer in the history.")
    return [loads(text) if (text := texts.get(id_)) else None for id_ in outcomes]


def _texts(alias: str, ids: Sequence[int]) -> dict[int, str | None]:
    from delayedq.models import FinishedMessage

    texts: dict[int, str | None] = {}
    history = FinishedMessage.objects.using(alias)
    for first in range(0, len(ids), CHUNK):
        texts.update(history.filter(id__in=ids[first : first + CHUNK]).values_list("id", "result"))
    return texts


def is_true(step: int, alias: str) -> bool:
    """Whether the result of a step of one member is; one that can't be read is not, and that is logged."""
    try:
        (value,) = results_of(step, alias)
        return bool(value)
    except CannotRun as error:
        logger.error(  # noqa: TRY400 - the text says it all
            "A step of flow %s is skipped, as its condition can't be read: %s", flow_of(step), error
        )
        return False
    except ValueError:
        return False


def _refer(result: StepResult) -> list[Any]:
    if not _in_a_flow.get():
        raise NotStorable(
            f"{result!r} is known when its step has ended: only another step of its flow can get it. Add the call as "
            "flow.add(name, task.s(step.result)), or read get_flow(id).result(name) when the flow has ended."
        )
    return result.reference()


serialization.register(TAG, lambda value: isinstance(value, StepResult), _refer, _load)
