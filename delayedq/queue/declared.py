"""The priorities that the queues of this process declare: what an operator may give to a waiting message.

They stand in code and not in the database. A priority that no consumer declares is one that no consumer polls.
"""

from __future__ import annotations

from threading import Lock

#: At most this many queues with priorities of their own are known, those that were declared last.
MOST_KNOWN = 10_000

_known: dict[str, tuple[int, ...]] = {}
_lock = Lock()

#: Every queue has it.
_ALWAYS = (0,)


def declare(queue: str, priorities: tuple[int, ...]) -> None:
    """Note the priorities of a queue, by its stored name. Two objects of one queue add up."""
    if priorities == _ALWAYS:
        return
    with _lock:
        known = {*_known.pop(queue, ()), *priorities}
        _known[queue] = tuple(sorted(known, reverse=True))
        if len(_known) > MOST_KNOWN:
            del _known[next(iter(_known))]


def declared(queue: str) -> tuple[int, ...]:
    """The priorities of a queue, by its stored name, the most urgent first; 0 alone if this process knows no others."""
    return _known.get(queue, _ALWAYS)
