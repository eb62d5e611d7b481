"""Signals of the desk; the sender is the kind of the message.

- `item_changed` (item, verb: str, by: a user or None): sent in the transaction of each verb, robustly: what a receiver
  raises is logged, and changes nothing.
- `item_due_soon`, `item_late` (item): once, by the worker that finds it out.
"""

from __future__ import annotations

from django.dispatch import Signal

item_changed = Signal()
item_due_soon = Signal()
item_late = Signal()
