"""Flows are stored: the row of the flow, those of its steps, and the messages of the steps that wait for nothing."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
import itertools
from itertools import groupby, islice
from typing import TYPE_CHECKING, Any

from delayedq.core.flows import MAX_WAITING, RESULT, StepState, When, flow_of, step_id
from delayedq.core.metadata import FLOW, STEP
from delayedq.exceptions import InvalidFlow
from delayedq.flows.result import FlowResult, cancel_flow
from delayedq.store.channels.offers import as_stored
from delayedq.store.flows.calls import dump_calls, until
from delayedq.store.flows.ending import advance, lock_flows, store_members
from delayedq.store.offering import CHUNK
from delayedq.store.offers import check
from delayedq.tasks.signature import Signature

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from datetime import datetime

    from django.db.models import QuerySet

    from delayedq.flows.graph import Flow, ResultOf
    from delayedq.models import FlowStep
    from delayedq.store.base import Store
    from delayedq.store.protocol import Offer
    from delayedq.tasks import Task


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
