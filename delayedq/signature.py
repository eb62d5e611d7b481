"""A call of a task that is not enqueued yet: a part of a flow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from delayedq.core.serialization import dump_call
from delayedq.core.signatures import parameter_names

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Signature:
    """A task with arguments, made by `Task.s` and `Task.si`.

    takes_result: in a chain, the result of what comes before it is put in front of `args`.
    """

    task: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    takes_result: bool = True

    @classmethod
    def of(cls, task: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, takes_result: bool = True) -> Self:
        """Raises NotStorable for arguments that can't be stored."""
        dump_call(args, kwargs, parameter_names(task.func, task.takes_context))
        return cls(task, args, kwargs, takes_result)
