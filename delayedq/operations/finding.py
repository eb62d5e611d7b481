"""Finding a live message by what an operator knows of it: its id, its key or how that begins, or an argument."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from delayedq.core.limits import is_storable
from delayedq.operations.browsing import PAGE, by_key, live_rows, scan_live

if TYPE_CHECKING:
    from delayedq.models import Message
    from delayedq.operations.selecting import Selection
    from delayedq.store.base import Store


class Found(NamedTuple):
    """What a search found. `is_cut`: it stopped at its bound, so there may be more.

    `by_argument`: no id and no key fitted, so arguments were looked at.
    """

    messages: list[Message]
    is_cut: bool = False
    by_argument: bool = False


def find(store: Store, text: str, selection: Selection, *, payload: bool = True) -> Found:
    """The messages of a selection that a text may mean: those with this id or key, and whose key begins with it.

    If there is none, those with the text in their payload, among the first that are due: a bounded look. With
    `payload` False, payloads are not looked at.
    """
    if not text or not is_storable(text):
        return Found([])
    rest = replace(selection, key=None)
    found = by_key(store, text, rest)
    if found:
        return Found(found[:PAGE], is_cut=len(found) > PAGE)
    if not payload:
        return Found([])
    page = live_rows(store, scan_live(store, replace(rest, argument=text), None, PAGE))
    return Found(page.rows, page.after is not None, by_argument=True)
