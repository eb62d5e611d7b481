"""The options of a desk task, and what its handler may say: who decides, and how much of it is reviewed."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from dis import get_instructions
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from django.forms import BaseForm

    from delayedq.tasks import Task

#: The value of `blind` where it is not given, and `required` is.
LEAST_BLIND = 0.05
#: What a function without statements consists of.
_IDLE = {"RESUME", "NOP", "LOAD_CONST", "RETURN_CONST", "RETURN_VALUE"}


class Mode(StrEnum):
    """Who decides the messages of a task."""

    PEOPLE = "people"  #: people; the handler does not run
    SHADOW = "shadow"  #: people, who do not see what the handler has decided
    ASSISTED = "assisted"  #: people; what the handler has decided is filled in
    REVIEWED = "reviewed"  #: the handler; people review a share, and all of which it is not sure
    AUTOMATIC = "automatic"  #: the handler, unless it raises NeedsPerson


class NeedsPerson(Exception):  # noqa: N818 - it says what comes next
    """Raised by a handler: a person has to decide this message. `reason` is shown to them.

    raise NeedsPerson("the amount is above 500")
    """

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


class Proposal(NamedTuple):
    """What a handler may return instead of its result: the result, and how sure it is (0 to 1)."""

    result: Any
    confidence: float


class Share(NamedTuple):
    """How many decisions are reviewed: a share of all (0 to 1), and all of a confidence under `below`."""

    share: float
    below: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Desk:
    """The options of `desk_task` that are not those of a task.

    handler: the function itself. form: a Django form, whose `cleaned_data` is a person's result (or what its method
    `result()` returns). review: how many decisions are reviewed; None: none, but the handler's in the mode "reviewed",
    which all are. due_in: how long after it was opened an item is due (timedelta). warn_before: how long before that
    `signals.item_due_soon` is sent. hold: how long an assignment lasts that is not renewed. mode: who decides, until
    somebody sets it in the admin. required: the share of decisions (0 to 1) that must be those of people; it limits
    what is automated, None: nothing does. blind: the share that people decide in the modes "reviewed" and "automatic",
    to measure the handler; None: LEAST_BLIND with `required`, else 0. skill: what people must have, or a function of
    the arguments that names it. weight: how much it counts of what one may hold. on_finish: a task, or a function of
    the item: it is enqueued with the id of the message (a str), or called, in the transaction that ends the message.
    """

    handler: Callable[..., Any]
    form: type[BaseForm] | None = None
    review: Share | None = None
    due_in: timedelta | None = None
    warn_before: timedelta = timedelta(hours=1)
    hold: timedelta = timedelta(hours=4)
    mode: Mode = Mode.PEOPLE
    required: float | None = None
    blind: float | None = None
    skill: str | Callable[..., str] = ""
    weight: int = 1
    on_finish: Task[..., Any] | Callable[[Any], object] | None = None

    def __post_init__(self) -> None:
        shares = {"blind": self.blind, "required": self.required}
        shares |= {} if self.review is None else {"review": self.review.share, "review.below": self.review.below}
        for name, share in shares.items():
            if share is not None and not 0 <= share <= 1:
                raise ValueError(f"{name} is a share from 0 to 1, not {share!r}")
        for name in ("due_in", "warn_before", "hold"):
            value = getattr(self, name)
            if not (isinstance(value, timedelta) and value > timedelta()) and not (name == "due_in" and value is None):
                raise ValueError(f"{name} is a timedelta above 0, not {value!r}")
        if not isinstance(self.weight, int) or self.weight < 1:
            raise ValueError(f"weight is an int of at least 1, not {self.weight!r}")
        if self.mode is not Mode.PEOPLE and not self.has_handler:
            raise ValueError(f"the mode {self.mode.value!r} needs a handler, but the body of the function is empty")

    @property
    def blind_share(self) -> float:
        """The share that people decide to measure the handler: without any, the brake would not hear of it again."""
        if self.blind is not None:
            return self.blind
        return 0.0 if self.required is None else LEAST_BLIND

    @property
    def has_handler(self) -> bool:
        """Whether the function does anything: a body of `...` says that only people decide."""
        code = getattr(self.handler, "__code__", None)
        return code is None or any(
            one.opname not in _IDLE or (one.opname != "RESUME" and one.argval is not None)
            for one in get_instructions(code)
        )
