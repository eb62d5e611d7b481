"""A flow: a graph of steps, each of them a call of a task, or a group of calls."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from graphlib import CycleError, TopologicalSorter
from itertools import batched, groupby, islice
from itertools import chain as joined
from typing import TYPE_CHECKING, Any, NamedTuple

from delayedq.async_versions import async_version
from delayedq.core.bounds import NAME_LENGTH
from delayedq.core.metadata import FLOW, STEP
from delayedq.core.other_names import PARTS, NoOperators, no_attribute
from delayedq.core.signatures import check_fit
from delayedq.exceptions import InvalidFlow, InvalidMessage
from delayedq.flows.ending import advance, dump_calls, lock_flows, store_members, until
from delayedq.flows.result import FlowResult, cancel_flow
from delayedq.flows.rules import MAX_NESTING, MAX_STEPS, MAX_WAITING, RESULT, Policy, StepState, When, flow_of, step_id
from delayedq.flows.step_results import StepResult
from delayedq.limits.offers import as_stored
from delayedq.store.base import CHUNK
from delayedq.store.offers import check, check_name
from delayedq.tasks import Task
from delayedq.tasks.base import BaseTask, Signature

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from datetime import datetime

    from django.db.models import QuerySet

    from delayedq.models import FlowStep
    from delayedq.store.base import Store
    from delayedq.store.protocol import Offer

# Flows are stored: the row of the flow, those of its steps, and the messages of the steps that wait for nothing.


#: Characters of arguments that are held until they are stored.
HELD = 2**22


@dataclass(eq=False)
class Node:
    """A step as it is described, not stored yet.

    incoming: what stands for the result of what comes before it in a chain. after: the names of its predecessors.
    """

    name: str
    calls: Iterable[Signature]
    is_group: bool
    incoming: Any = None
    after: list[str] = field(default_factory=list)
    when: str | ResultOf = When.SUCCEEDED
    number: int = 0
    #: Its calls come from an iterator, of which some were read.
    was_read: bool = False


def enqueue(flow: Flow, nodes: list[Node], commit_every: int | None) -> FlowResult:
    """See `Flow.enqueue`."""
    return _Storing(flow, nodes).store_it(commit_every)


def store_of(task: Task[..., Any]) -> Store:
    """The store of the messages of a task. Raises InvalidFlow if its backend has none."""
    backend = task.get_backend()
    store: Store | None = getattr(backend, "store", None)
    if store is None:
        raise InvalidFlow(
            f"{task.name}: its backend {task.backend!r} ({type(backend).__qualname__}) keeps no messages in a database."
            " Steps of flows need delayedq.backend.DelayedQBackend."
        )
    return store


class _Storing:
    def __init__(self, flow: Flow, nodes: list[Node]) -> None:
        self._flow = flow
        self._nodes = nodes
        self._firsts = {node.number: _first(node) for node in nodes}
        tasks = [one.task for one in self._firsts.values() if one is not None]
        if flow.on_failure is not None:
            tasks.append(flow.on_failure)
        if not tasks:
            raise InvalidFlow(f"The flow {flow.name!r} has no calls at all.")
        self._backend = tasks[0].backend
        self._store = store_of(tasks[0])
        self._checked: set[tuple[Any, ...]] = set()
        for task in tasks:
            self._check_task(task)
        self._now: datetime = self._store.now()
        self._deadline_at = None if flow.deadline is None else self._now + flow.deadline

    def store_it(self, commit_every: int | None) -> FlowResult:
        if commit_every is not None:
            self._check_commits(commit_every)
        begun = StepState.RUNNING if commit_every is None else StepState.FILLING
        try:
            with self._store.database.atomic():
                id_ = self._store_flow(begun)
                if commit_every is None:
                    self._fill(id_, CHUNK, begun)
        except BaseException:
            self._flow.id = self._flow.alias = None
            raise
        if commit_every is not None:
            self._fill_in_parts(id_, commit_every)
        return FlowResult(id_, self._backend)

    def _fill_in_parts(self, flow: int, commit_every: int) -> None:
        try:
            self._fill(flow, commit_every, StepState.FILLING)
        except BaseException:
            cancel_flow(self._store, flow)
            raise

    def _check_commits(self, every: int) -> None:
        if not isinstance(every, int) or isinstance(every, bool) or every < 1:
            raise InvalidFlow(f"commit_every is a number of at least 1, not {every!r}.")
        if self._store.database.in_transaction and not self._is_of_a_test():
            raise InvalidFlow("commit_every needs transactions of its own: enqueue the flow outside of any other.")

    def _is_of_a_test(self) -> bool:
        """Whether the transaction is that of a TestCase: to Django's atomic(durable=True), it is none either."""
        blocks = self._store.database.connection.atomic_blocks
        return bool(blocks) and blocks[-1]._from_testcase  # type: ignore[attr-defined]  # noqa: SLF001

    def _check_task(self, task: Task[..., Any]) -> None:
        options = task.func, task.backend, task.queue_name, task.priority  # a task itself may be gone after its call
        if options in self._checked:
            return
        if store_of(task).alias != self._store.alias:
            raise InvalidFlow(
                f"{task.name} has its messages in the database {store_of(task).alias!r}, other steps in "
                f"{self._store.alias!r}: a flow is in one database."
            )
        task.get_backend().validate_task(task)
        self._checked.add(options)

    def _store_flow(self, begun: StepState) -> int:
        from delayedq.models import Flow, FlowStep

        flow, alias = self._flow, self._store.alias
        row = Flow(name=flow.name, policy=flow.policy, created_at=self._now)
        row.deadline, row.deadline_at = flow.deadline, self._deadline_at
        self._store.database.retried(partial(row.save, using=alias))  # its error would name the cure
        flow.id, flow.alias = row.pk, alias
        if flow.on_failure is not None:
            offer = flow.on_failure.offer([str(row.pk)], {}, when=flow.on_failure.run_after)
            check(as_stored(offer))
            row.on_failure = dump_calls([offer])
            row.save(using=alias, update_fields=["on_failure"])
        rows = [self._row(row.pk, node, begun) for node in self._nodes]
        FlowStep.objects.using(alias).bulk_create(rows, batch_size=100)
        return int(row.pk)

    def _row(self, flow: int, node: Node, begun: StepState) -> FlowStep:
        from delayedq.models import FlowStep

        first = self._firsts[node.number]
        calls = self._waiting(flow, node) if node.after else [] if begun == StepState.FILLING else None
        number_of = {one.name: one.number for one in self._nodes}
        after = sorted({number_of[name] for name in node.after})
        when = node.when if isinstance(node.when, str) else f"{RESULT}{node.when.step.node.number}"
        return FlowStep(
            id=step_id(flow, node.number),
            flow_id=flow,
            name=node.name,
            state=StepState.WAITING if node.after else begun,
            released_at=None if node.after else self._now,
            after=str(after),
            runs_when=when,
            kind="" if first is None else first.task.module_path,
            is_group=node.is_group,
            size=0 if calls is None else len(calls),
            calls=None if calls is None else dump_calls(calls),
        )

    def _waiting(self, flow: int, node: Node) -> list[Offer]:
        """The messages of a step that waits."""
        offers = list(islice(self._offers(flow, node), MAX_WAITING + 1))
        if len(offers) > MAX_WAITING:
            raise InvalidFlow(
                f"The group {node.name!r} waits for other steps: it has at most {MAX_WAITING:,} calls. Let it come "
                "first, or let a task before it enqueue a flow of its own."
            )
        for offer in until(offers, self._deadline_at, self._now):
            check(as_stored(offer))
        return offers

    def _offers(self, flow: int, node: Node) -> Iterator[Offer]:
        """The messages of a step, one at a time."""
        own = {FLOW: flow, STEP: node.number}
        node.was_read = not isinstance(node.calls, list | tuple)
        for _, run in groupby(node.calls, key=_task_of):
            calls = iter(run)
            first = next(calls)
            self._check_task(first.task)
            given = (call.call(node.incoming) for call in itertools.chain([first], calls))
            yield from first.task.offers(given, first.task.run_after, step=own)

    def _fill(self, flow: int, chunk_size: int, begun: StepState) -> None:
        """Store the messages of the steps that wait for nothing."""
        roots = {step_id(flow, node.number): node for node in self._nodes if not node.after}
        sizes = {step: self._fill_step(step, node, chunk_size, begun) for step, node in roots.items()}
        if begun == StepState.RUNNING and all(sizes.values()):
            return  # nobody has seen them
        with self._store.database.atomic():
            lock_flows(self._store, [flow])
            filled = self._rows().filter(id__in=roots, state=StepState.FILLING)
            filled.update(state=StepState.RUNNING, calls=None, released_at=self._now)
            advance(self._store, list(roots))

    def _fill_step(self, step: int, node: Node, chunk_size: int, begun: StepState) -> int:
        """Returns how many members it has."""
        size = 0
        is_seen = begun == StepState.FILLING
        for offers in _parts(self._offers(flow_of(step), node), chunk_size):
            with self._store.database.atomic():
                size += len(offers)
                if not self._rows().filter(id=step, state=begun).update(size=size, **self._alive() if is_seen else {}):
                    raise InvalidFlow(f"The flow {self._flow.name!r} was cancelled while it was stored.")
                store_members(self._store, {step: until(offers, self._deadline_at, self._now)})
        return size

    def _alive(self) -> dict[str, datetime]:
        """For the sweep, which cancels a flow that nobody fills any more. `calls` stays empty until all are stored."""
        return {"released_at": self._store.now()}

    def _rows(self) -> QuerySet[FlowStep]:
        from delayedq.models import FlowStep

        return FlowStep.objects.using(self._store.alias)


def _parts(offers: Iterable[Offer], most: int) -> Iterator[list[Offer]]:
    """Of so many messages at most, and no more than HELD: those of `map_` are large."""
    part: list[Offer] = []
    held = 0
    for offer in offers:
        part.append(offer)
        held += len(offer.payload)
        if len(part) == most or held >= HELD:
            yield part
            part, held = [], 0
    if part:
        yield part


def _first(node: Node) -> Signature | None:
    """The first call of a step; what is read of an iterator for that is not lost."""
    if isinstance(node.calls, list | tuple):
        first = node.calls[0] if node.calls else None
    else:
        calls = iter(node.calls)
        node.was_read = True  # an iterator that raises has ended: read once more, it would be an empty group
        first = next(calls, None)
        node.was_read = False
        node.calls = [] if first is None else itertools.chain([first], calls)
    if first is not None:
        _task_of(first)
    return first


def _task_of(call: object) -> int:
    if isinstance(call, Signature):
        return id(call.task)
    cure = " Give the group a list of its chains and groups, not an iterator." if hasattr(call, "put_into") else ""
    raise InvalidFlow(f"A member of a group is a call such as task.s(...), not {call!r}.{cure}")


# Graph


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


# `chain`, `group` and `map_`: flows whose graph follows from how their parts are put together.


class Before(NamedTuple):
    """What a part comes after: steps, and what stands for their result. None: nothing."""

    steps: list[AddedStep]
    result: Any = None


class Part(NoOperators, ABC):
    """A chain or a group."""

    if not TYPE_CHECKING:  # to a type checker, it would make all of them attributes

        def __getattr__(self, name: str) -> Any:
            """Names what does here what a verb of another framework does there."""
            raise no_attribute(self, name, PARTS)

    def then(self, *parts: Signature | Part) -> Chain:
        """What comes after it: the first one gets its result, or the list of results of a group."""
        return chain(self, *parts)

    def enqueue(self, *, commit_every: int | None = None, **options: Any) -> FlowResult:
        """Store it as a flow, and return its result. The options are those of `Flow`: name, policy, ...

        Raises what `Flow` and `Flow.enqueue` raise; `commit_every` is explained there.
        """
        flow = Flow(**{"name": self._name(), **options})
        self.put_into(flow, Before([]), 1)
        return flow.enqueue(commit_every=commit_every)

    aenqueue = async_version(enqueue)

    @abstractmethod
    def _name(self) -> str: ...

    @abstractmethod
    def put_into(self, flow: Flow, before: Before, depth: int) -> Before:
        """Add its steps to a flow; what comes next comes after what this returns."""


def _put(part: object, flow: Flow, before: Before, depth: int) -> Before:
    if depth > MAX_NESTING:
        raise InvalidFlow(f"Chains and groups contain each other at most {MAX_NESTING} deep.")
    if isinstance(part, Part):
        return part.put_into(flow, before, depth + 1)
    if not isinstance(part, Signature):
        raise InvalidFlow(_no_part(part))
    return _step(flow, part.task.name, [part], before, is_group=False)


def _no_part(part: object) -> str:
    if isinstance(part, list | tuple):
        return (
            "A part of a flow is a call such as task.s(...), a chain or a group, not a list of them: use chain(*parts)."
        )
    given = f"the task {part.name} itself" if isinstance(part, BaseTask) else repr(part)
    return f"A part of a flow is a call such as task.s(...), a chain or a group, not {given}."


def _step(flow: Flow, name: str, calls: Iterable[Signature], before: Before, *, is_group: bool) -> Before:
    node = Node(f"{flow.size + 1} {name}"[:200], calls, is_group, before.result)
    step = flow.put(node, before.steps)
    return Before([step], step.result)


class Chain(Part):
    def __init__(self, parts: tuple[Signature | Part, ...]) -> None:
        self._parts = parts

    def then(self, *parts: Signature | Part) -> Chain:
        """The same chain with more parts: it may be built in a loop."""
        return chain(*self._parts, *parts)

    def _name(self) -> str:
        return "chain"

    def put_into(self, flow: Flow, before: Before, depth: int) -> Before:
        for part in self._parts:
            before = _put(part, flow, before, depth)
        return before


class Group(Part):
    def __init__(self, parts: Iterable[Signature | Part], name: str = "group") -> None:
        self._parts = parts
        self._kind = name
        self._was_read = False

    def _name(self) -> str:
        return self._kind

    def calls(self) -> Iterable[Signature]:
        """Its members, of a group that has nothing but calls. Raises InvalidFlow for another one."""
        if isinstance(self._parts, list | tuple):
            for part in self._parts:
                if not isinstance(part, Signature):
                    raise InvalidFlow(f"A group that is a step of a flow may contain only calls, not {part!r}.")
        return self._read()  # type: ignore[return-value]  # what is read later is checked then

    def _read(self) -> Iterable[Signature | Part]:
        """Its parts. Raises InvalidFlow for an iterator that was given out before: of that, some were read."""
        if iter(self._parts) is self._parts:
            if self._was_read:
                raise InvalidFlow("The calls of this group come from an iterator, which was read before: make another.")
            self._was_read = True
        return self._parts

    def put_into(self, flow: Flow, before: Before, depth: int) -> Before:
        parts = self._parts
        if isinstance(parts, list | tuple):
            if any(isinstance(part, Part) for part in parts):
                ends = [_put(part, flow, before, depth) for part in parts]
                return Before([step for end in ends for step in end.steps], [end.result for end in ends])
            first = next(iter(parts), None)
        else:
            iterator = iter(self._read())
            first = next(iterator, None)
            parts = iterator if first is None else joined([first], iterator)
        name = first.task.name if isinstance(first, Signature) else self._kind
        return _step(flow, name, parts, before, is_group=True)  # type: ignore[arg-type]  # checked when they are read


def chain(*parts: Signature | Part) -> Chain:
    """Calls, one after the other; each gets the result of the one before as its first argument (not one of `task.si`).

    Raises InvalidFlow without parts, and for what is no part.

        chain(fetch.s(url), resize.s(width=200), publish.s()).enqueue()
    """
    if not parts:
        raise InvalidFlow("A chain has at least one part.")
    _check_parts(parts)
    return Chain(parts)


def group(*parts: Any) -> Group:
    """Calls side by side: several, or an iterable of them, which is read when the flow is enqueued.

    What comes after it starts when all have ended, and gets the list of their results. A group may have any number of
    calls; of an iterator, no more than 10,000 are in memory at once. Chains and groups may be among a few parts.

        group(resize.s(photo, width) for width in (200, 800)).then(publish.s()).enqueue()
    """
    if len(parts) == 1 and not isinstance(parts[0], Signature | Part):
        (given,) = parts
        if not hasattr(given, "__iter__"):
            raise InvalidFlow(f"A group is made of calls such as task.s(...), chains and groups, not of {given!r}.")
        if not isinstance(given, list | tuple):
            return Group(given)
        parts = tuple(given)
    _check_parts(parts)
    return Group(parts)


def map_(task: Task[..., Any], rows: Iterable[Any], chunk: int = 500) -> Group:
    """Return a group of calls of the task, each with a list of at most `chunk` rows. The rows are not held in memory.

    Raises InvalidFlow if `task` is not a task, the rows are not iterable, or the chunk is below 1. Each call is a
    message, with its rows in its payload.

        map_(import_rows, csv.reader(file), chunk=500).then(report.s()).enqueue()
    """
    given: object = task
    if not isinstance(given, BaseTask):
        name = getattr(given, "__name__", type(given).__name__)
        raise InvalidFlow(f"map_() takes a task and its rows, as in map_(task, rows), but {name} is not a task.")
    if isinstance(rows, str | bytes | Mapping) or not hasattr(rows, "__iter__"):
        raise InvalidFlow(
            f"The rows of map_() are a list or another iterable of them, as in map_(task, [7, 8]), not {rows!r}."
        )
    if not isinstance(chunk, int) or isinstance(chunk, bool) or chunk < 1:
        raise InvalidFlow(f"A chunk has at least 1 row, not {chunk!r}.")
    return Group(_chunks(task, rows, chunk), f"map {task.name}"[:200])


def _chunks(task: Task[..., Any], rows: Iterable[Any], chunk: int) -> Iterator[Signature]:
    return (task.s(list(some)) for some in batched(rows, chunk))


def _check_parts(parts: Iterable[object]) -> None:
    for part in parts:
        if not isinstance(part, Signature | Part):
            raise InvalidFlow(_no_part(part))
