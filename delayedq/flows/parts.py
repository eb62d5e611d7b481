"""`chain`, `group` and `map_`: flows whose graph follows from how their parts are put together."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from itertools import batched
from itertools import chain as joined
from typing import TYPE_CHECKING, Any, NamedTuple

from delayedq.async_versions import async_version
from delayedq.core.flows import MAX_NESTING
from delayedq.core.other_names import PARTS, NoOperators, no_attribute
from delayedq.exceptions import InvalidFlow
from delayedq.flows.graph import AddedStep, Flow
from delayedq.flows.storing import Node
from delayedq.tasks.base import BaseTask
from delayedq.tasks.signature import Signature

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from delayedq.flows.result import FlowResult
    from delayedq.tasks import Task


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
