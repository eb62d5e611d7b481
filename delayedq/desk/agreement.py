"""Decide how much of its messages a handler may decide: pure functions on counts.

People decide some messages without seeing what the handler has decided. How often both are the same is an estimate;
what may be automated follows from the lower end of its confidence interval.
"""

from __future__ import annotations

from math import sqrt
from typing import NamedTuple

from django.utils.crypto import salted_hmac

#: The standard normal quantile of a two-sided confidence of 95 %.
Z = 1.959963984540054
#: With fewer comparisons nothing is automated by the brake.
LEAST = 30
#: How many of the last comparisons count.
WINDOW = 200


class Agreement(NamedTuple):
    """How often handler and people decided alike, and the ends of its 95 % confidence interval (Wilson's)."""

    agreed: int
    compared: int

    @property
    def share(self) -> float | None:
        return self.agreed / self.compared if self.compared else None

    @property
    def interval(self) -> tuple[float, float]:
        """
        >>> [round(end, 4) for end in Agreement(95, 100).interval]
        [0.8882, 0.9785]
        """
        n, z2 = self.compared, Z * Z
        if not n:
            return 0.0, 1.0
        share = self.agreed / n
        middle = (share + z2 / (2 * n)) / (1 + z2 / n)
        half = Z / (1 + z2 / n) * sqrt(share * (1 - share) / n + z2 / (4 * n * n))
        return max(0.0, middle - half), min(1.0, middle + half)

    def allowed(self, required: float) -> float:
        """The largest share of all messages that the handler may decide, so that at most `1 - required` of all are
        decided in another way than people would, even if its agreement is only the lower end of the interval.

        >>> Agreement(95, 100).allowed(0.95) < 0.5, Agreement(200, 200).allowed(0.95), Agreement(10, 10).allowed(0.95)
        (True, 1.0, 0.0)
        """
        if self.compared < LEAST:
            return 0.0
        wrong = 1 - self.interval[0]
        return 1.0 if wrong <= 1 - required else (1 - required) / wrong


def drawn(message_id: int, purpose: str) -> float:
    """A number from 0 to 1 (excluded) that is always the same for this message, so that an attempt that is repeated
    after its worker was killed draws the same lot. It depends on SECRET_KEY: who sees the id can't compute it.
    """
    digest = salted_hmac(f"delayedq.desk/{purpose}", str(message_id), algorithm="sha256").digest()
    return int.from_bytes(digest[:8]) / 2**64
