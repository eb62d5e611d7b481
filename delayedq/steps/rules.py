"""The names of the steps of a task.

A name that an attempt uses again has a number: "charge", "charge#2", "charge#3". So the steps of a loop have the same
names in each attempt, as long as the loop has the same order.
"""

from __future__ import annotations

from collections import Counter

from delayedq.core.bounds import NAME_LENGTH, is_storable

MARK = "#"

#: What `sleep` and `sleep_until` record.
SLEEP = "sleep"

#: The longest name, without its number.
LONGEST = NAME_LENGTH - 10


def check_name(name: object) -> str:
    """Raises TypeError or ValueError for what can't be the name of a step."""
    if not isinstance(name, str):
        raise TypeError(f"The name of a step is a str, not {name!r}.")
    if not 1 <= len(name) <= LONGEST or MARK in name or not is_storable(name):
        raise ValueError(
            f"The name of a step has 1 to {LONGEST} characters, none of them {MARK!r} (which numbers those that are "
            f"used again) or NUL, not {name!r}."
        )
    return name


def base_name(name: str) -> str:
    """A recorded name without its number."""
    return name.partition(MARK)[0]


class StepNames:
    """Numbers the names that one attempt uses."""

    def __init__(self) -> None:
        self._used: Counter[str] = Counter()

    def next(self, name: str) -> str:
        """The name of the next step that is called so."""
        self._used[name] += 1
        number = self._used[name]
        return name if number == 1 else f"{name}{MARK}{number}"
