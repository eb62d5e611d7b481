"""Labels of metrics: how many there may be is bounded."""

from __future__ import annotations

#: The label of all names beyond those that are told apart.
OTHERS = "(others)"
