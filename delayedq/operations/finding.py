"""Finding a live message by what an operator knows of it: its id, its key or how that begins, or an argument."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from delayedq.core.limits import is_storable
from delayedq.masking import masking_of, masks_anything
from delayedq.models import Message
from delayedq.operations.browsing import PAGE, by_key, live_rows, scan_live
from delayedq.store.operator import KeysetPage

if TYPE_CHECKING:
    from delayedq.operations.selecting import Selection
    from delayedq.store.base import Store
    from delayedq.store.operator import Position


#: Where something is masked, at most this many messages are looked at twice: as they are stored, and as they are shown.
MOST_MASKED = 1_000


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
    page = scan_live(store, replace(rest, argument=text), None, MOST_MASKED if masks_anything() else PAGE)
    shown = _that_show(store, [*page.found, *page.beyond], text)
    rows = live_rows(store, KeysetPage(shown[:PAGE], None)).rows
    return Found(rows, page.reached is not None or len(shown) > PAGE, by_argument=True)


def _that_show(store: Store, positions: list[Position], text: str) -> list[Position]:
    """Those whose payload has the text as it may be shown: a search must not tell what is masked."""
    if not masks_anything():
        return positions
    messages = Message.objects.using(store.alias).filter(id__in=[position.id for position in positions])
    payloads = {id_: _masked(kind, payload) for id_, kind, payload in messages.values_list("id", "kind", "payload")}
    forms = {text, json.dumps(text)[1:-1]}
    return [one for one in positions if any(form in payloads.get(one.id, "") for form in forms)]


def _masked(kind: str, payload: str) -> str:
    masking = masking_of(kind)
    return payload if masking is None else masking.payload(payload)
