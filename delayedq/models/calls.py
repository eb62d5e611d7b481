"""What a row of a task, live or ended, says as Python values."""

from __future__ import annotations

from typing import Any

from delayedq.core.metadata import as_given
from delayedq.core.serialization import load_call, loads


class StoredCall:
    """The call that a message stores. References to model instances are loaded: a query for each."""

    payload: Any
    metadata: Any

    @property
    def args(self) -> list[Any]:
        """The positional arguments. Raises ArgumentsMismatch for a message of a bare queue, which has none."""
        return load_call(self.payload)[0]

    @property
    def kwargs(self) -> dict[str, Any]:
        """The keyword arguments. Raises ArgumentsMismatch for a message of a bare queue, which has none."""
        return load_call(self.payload)[1]

    @property
    def metadata_value(self) -> Any:
        """The metadata that the task or `using(metadata=...)` gave it; None: none."""
        given = as_given(self.metadata)
        return None if given is None else loads(given)
