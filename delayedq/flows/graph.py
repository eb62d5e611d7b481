"""A flow: a graph of steps, each of them a call of a task, or a group of calls."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING, Any

from delayedq.async_versions import async_version
from delayedq.core.flows import MAX_STEPS, Policy, When, step_id
from delayedq.core.limits import NAME_LENGTH
from delayedq.core.signatures import check_fit
from delayedq.exceptions import InvalidFlow, InvalidMessage
from delayedq.flows.storing import Node, enqueue
from delayedq.store.flows.results import StepResult
from delayedq.store.offers import check_name
from delayedq.tasks import Task
from delayedq.tasks.signature import Signature

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from delayedq.flows.parts import Group
    from delayedq.flows.result import FlowResult


@dataclass(eq=False, repr=False)
class AddedStep:
    """A step of a flow that is not enqueued yet. `result` stands for its return value in the arguments of others."""

    flow: Flow
    node: Node

    def __repr__(self) -> str:
        return f"<step {self.node.name!r}>"

    @property
    def name(self) -> str:
        return self.node.name

    @property
    def result(self) -> ResultOf:
        """Its return value; of a group, the list of those of its members. Whoever gets it comes after this step."""
        return ResultOf(self)


class ResultOf(StepResult):
    """The result of a step, as an argument of another one."""

    def __init__(self, step: AddedStep) -> None:
        self.step = step

    def __repr__(self) -> str:
        return f"<result of {self.step.name!r}>"

    def reference(self) -> list[Any]:
        flow, node = self.step.flow, self.step.node
        return [step_id(flow.id or 0, node.number), node.is_group, flow.alias]


class Flow:
    """A graph of steps: tasks that wait for each other. Nothing is stored before `enqueue`.

    name: a text of 1 to 200 characters. policy: what happens after a step has failed: "stop" (the default) releases no
    more steps that wait for success; "continue" still runs steps that do not come after the failed one. deadline: a
    timedelta after which the flow and its tasks are stopped. on_failure: a task that is enqueued with the id of the
    flow (a str) when the flow has failed. Raises InvalidFlow for other values.

        flow = Flow("import")
        rows = flow.add("fetch", fetch.s("https://example.com/rows"))
        flow.add("store", store.s(rows.result))
        flow.enqueue()
    """

    def __init__(
        self,
        name: str = "flow",
        *,
        policy: Policy | str = Policy.STOP,
        deadline: timedelta | None = None,
        on_failure: Task[..., Any] | None = None,
    ) -> None:
        _check_name("flow", name)
        if policy not in set(Policy):
            raise InvalidFlow(f"The policy of a flow is {' or '.join(map(repr, map(str, Policy)))}, not {policy!r}.")
        if deadline is not None and not (isinstance(deadline, timedelta) and deadline > timedelta()):
            raise InvalidFlow(f"The deadline of a flow is a timedelta above 0, or None, not {deadline!r}.")
        _check_on_failure(on_failure)
        self.name, self.policy, self.deadline, self.on_failure = name, Policy(policy), deadline, on_failure
        #: Those of the stored flow; None before `enqueue`.
        self.id: int | None = None
        self.alias: str | None = None
        self._steps: dict[str, AddedStep] = {}

    @property
    def size(self) -> int:
        """The number of steps."""
        return len(self._steps)

    def add(
        self,
        name: str,
        call: Signature | Group,
        after: Iterable[AddedStep | str] | AddedStep | str = (),
        when: str | StepResult = When.SUCCEEDED,
    ) -> AddedStep:
        """Add a step: a call (`task.s(...)`), or a group of calls. It starts when the steps of `after` have ended.

        after: steps, or their names; they may be added later. A step whose result is among the arguments need not be
        named, unless the calls of a group come from an iterator. when: "succeeded" (all of them; the default), "failed"
        (one of them failed or was cancelled), "ended" (in any case), or the result of a step (all of them have
        succeeded, and it is true). Otherwise the step is skipped.
        Raises InvalidFlow for a name that is already used, and for invalid values.

            flow.add("clean up", clean_up.s(), after=["load"], when="ended")
        """
        _check_name("step", name)
        if name in self._steps:
            raise InvalidFlow(f"The flow {self.name!r} has a step {name!r} already; names are unique.")
        if self.id is not None:
            raise InvalidFlow(f"The flow {self.name!r} is enqueued: no steps can be added. Make another Flow.")
        if not isinstance(call, Signature) and not hasattr(call, "calls"):
            raise InvalidFlow(f"A step is a call such as task.s(...), or a group of calls, not {call!r}.")
        node = (
            Node(name, [call], is_group=False)
            if isinstance(call, Signature)
            else Node(name, call.calls(), is_group=True)
        )
        return self.put(node, [after] if isinstance(after, AddedStep | str) else list(after), when)

    def put(self, node: Node, after: Iterable[AddedStep | str], when: str | StepResult = When.SUCCEEDED) -> AddedStep:
        """The step of this node."""
        if len(self._steps) == MAX_STEPS:
            raise InvalidFlow(f"A flow has at most {MAX_STEPS:,} steps; a group of any number of calls is one of them.")
        node.when = self._condition(when)
        node.after = [self._name(one) for one in after]
        used = [node.incoming, when]
        if isinstance(node.calls, list | tuple):
            used += node.calls
        else:
            node.calls = self._checked(node, node.calls)
        node.after += [self._name(result.step) for result in _results_in(used)]
        if node.when != When.SUCCEEDED and not node.after:
            raise InvalidFlow(
                f"The step {node.name!r} has no predecessor, so when= has nothing to depend on: name one in after=."
            )
        added = self._steps[node.name] = AddedStep(self, node)
        return added

    def _checked(self, node: Node, calls: Iterable[Signature]) -> Iterator[Signature]:
        """Calls that are read when the flow is stored, when it is too late to add a predecessor."""
        for call in calls:
            if isinstance(call, Signature) and call.payload is None:
                for result in _results_in(call):
                    if self._name(result.step) not in node.after:
                        raise InvalidFlow(
                            f"A call of the group {node.name!r} gets the result of {result.step.name!r}, which it does "
                            f"not wait for: name that in `after`, or give the group a list of calls."
                        )
            yield call

    def _name(self, step: AddedStep | str) -> str:
        if isinstance(step, AddedStep):
            if step.flow is not self:
                raise InvalidFlow(f"{step!r} is a step of another flow.")
            return step.name
        return step

    def _condition(self, when: str | StepResult) -> str | ResultOf:
        if isinstance(when, ResultOf):
            if when.step.node.is_group:
                raise InvalidFlow(f"The result of {when.step.name!r} is a list: a condition is that of a single call.")
            return when
        if when not in set(When):
            choices = ", ".join(map(repr, map(str, When)))
            raise InvalidFlow(f"A step comes when {choices}, or when the result of a step is true, not {when!r}.")
        return str(when)

    def enqueue(self, *, commit_every: int | None = None) -> FlowResult:
        """Store the flow and the messages of its first steps in one transaction, and return a `FlowResult`.

        commit_every: store the members of groups in transactions of this many messages, outside of any other
        transaction: they start before the last one is stored. If the rows end in an error, the flow is cancelled.

        Raises InvalidFlow, and stores nothing, if a step comes after itself or after an unknown one; TypeError if
        arguments do not fit their task; InvalidMessage if something can't be stored.
        """
        if self.id is not None:
            raise InvalidFlow(f"The flow {self.name!r} is enqueued already. Make another Flow.")
        nodes = self._in_order()
        if any(node.was_read for node in nodes):
            raise InvalidFlow(
                f"The flow {self.name!r} could not be stored before, and the calls of a group come from an iterator, "
                "which was read then: make another Flow."
            )
        return enqueue(self, nodes, commit_every)

    aenqueue = async_version(enqueue)

    def _in_order(self) -> list[Node]:
        """The nodes with their numbers: each after those that it waits for."""
        if not self._steps:
            raise InvalidFlow(f"The flow {self.name!r} has no steps.")
        for step in self._steps.values():
            if unknown := [name for name in step.node.after if name not in self._steps]:
                known = ", ".join(map(repr, self._steps))
                raise InvalidFlow(
                    f"{step!r} comes after {unknown[0]!r}, which is not a step of the flow: it has {known}."
                )
        try:
            names = list(
                TopologicalSorter({name: step.node.after for name, step in self._steps.items()}).static_order()
            )
        except CycleError as error:
            raise InvalidFlow(f"These steps wait for each other: {' -> '.join(error.args[1])}.") from None
        nodes = [self._steps[name].node for name in names]
        for number, node in enumerate(nodes):
            node.number = number
        return nodes


def _results_in(value: Any) -> Iterator[ResultOf]:
    """The results of steps anywhere in arguments."""
    if isinstance(value, ResultOf):
        yield value
    elif isinstance(value, Signature):
        yield from _results_in(value.args)
        yield from _results_in(value.kwargs)
    elif isinstance(value, dict):
        yield from _results_in([*value, *value.values()])
    elif isinstance(value, list | tuple | set | frozenset):
        for each in value:
            yield from _results_in(each)


def _check_name(what: str, name: object) -> None:
    try:
        check_name(what, name if isinstance(name, str) else "")
    except InvalidMessage:
        raise InvalidFlow(f"The name of a {what} is a text of 1 to {NAME_LENGTH} characters, not {name!r}.") from None


def _check_on_failure(task: object) -> None:
    if task is None:
        return
    if not isinstance(task, Task):
        raise InvalidFlow(f"on_failure of a flow is a task, not {task!r}.")
    try:
        check_fit(task.func, task.takes_context, ("id",), {})
    except TypeError as error:
        raise InvalidFlow(f"on_failure is a task that takes the id of a flow; {task.name}: {error}.") from None
