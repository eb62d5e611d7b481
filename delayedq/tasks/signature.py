"""A call of a task that is not enqueued yet: a part of a flow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from delayedq.core.other_names import PARTS, NoOperators, no_attribute
from delayedq.core.signatures import parameter_names
from delayedq.store.flows.results import dump_step

if TYPE_CHECKING:
    from collections.abc import Mapping


#: What stands in a payload for the result of a step, which is known only when its flow is stored; see `store.flows`.
_REFERENCE = '"$":"step"'


class WrittenCall(NamedTuple):
    """A call whose payload is written already."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    payload: str


@dataclass(frozen=True, slots=True)
class Signature(NoOperators):
    """A task with arguments, made by `Task.s` and `Task.si`.

    payload: as `dump_step` wrote the arguments; None if they refer to results. takes_result: in a chain, the result of
    what comes before it is put in front of `args`.
    """

    task: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    payload: str | None
    takes_result: bool = True

    if not TYPE_CHECKING:  # to a type checker, it would make all of them attributes

        def __getattr__(self, name: str) -> Any:
            """Names what does here what a verb of another framework does there."""
            raise no_attribute(self, name, PARTS)

    @classmethod
    def of(cls, task: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, takes_result: bool = True) -> Self:
        """Raises NotStorable for arguments that can't be stored."""
        payload = dump_step(args, kwargs, parameter_names(task.func, task.takes_context))
        return cls(task, args, kwargs, None if _REFERENCE in payload else payload, takes_result)

    def call(self, incoming: Any) -> WrittenCall | tuple[tuple[Any, ...], Mapping[str, Any]]:
        """What is called if `incoming` stands for the result of what comes before; None: nothing does."""
        if incoming is not None and self.takes_result:
            return (incoming, *self.args), self.kwargs
        return (self.args, self.kwargs) if self.payload is None else WrittenCall(self.args, self.kwargs, self.payload)
