"""Why a verb of the desk was refused. Nothing was changed then."""

from __future__ import annotations

from delayedq.exceptions import DelayedQError


class DeskError(DelayedQError):
    """A verb was refused; nothing was changed. `field`: where a form shows it, None beside no field."""

    field: str | None = None


class Taken(DeskError):
    """Somebody else holds the item; the error says who, and since when."""


class NotOpen(DeskError):
    """The item is not in a state in which this can be done: it was decided, or withdrawn, or was not decided yet."""


class Replaced(NotOpen):
    """The message of the item has other arguments now: a worker opens the item anew."""


class NotAllowed(DeskError):
    """The permissions, groups, skills or the load of a person do not allow it; the error says which."""

    field = "user"


class InvalidDecision(DeskError, ValueError):
    """A decision that cannot be stored, or that the form of the task refuses; `errors` has the messages by field."""

    field = "result"

    def __init__(self, text: str, errors: dict[str, list[str]] | None = None) -> None:
        super().__init__(text)
        self.errors = errors or {}


class InvalidPostponement(DeskError, ValueError):
    """A time that is not aware, is past, or is more than ten years ahead."""

    field = "until"


class LateAlready(DeskError, ValueError):
    """An item whose due time has passed: its clock cannot be paused any more."""

    field = "pause_clock"
