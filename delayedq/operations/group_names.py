"""Names of error groups in addresses: fingerprints, enciphered with the key of the site.

A fingerprint follows from what an error says. As it is, it would let anybody who may not see errors check a guess.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.utils.crypto import salted_hmac

from delayedq.core.errors import as_hex, from_hex

if TYPE_CHECKING:
    from collections.abc import Iterable

SALT = "delayedq.admin.group_names"
#: A Feistel network of so many rounds on two halves of so many bits.
ROUNDS, HALF = 4, 32


def name_of(fingerprint: int) -> str:
    """16 digits, which say nothing about the error; they last as long as SECRET_KEY."""
    left, right = divmod(int(as_hex(fingerprint), 16), 2**HALF)
    left, right = _mixed(left, right, range(ROUNDS))
    return f"{right << HALF | left:016x}"


def fingerprint_of(name: str) -> int:
    """The reverse. Raises ValueError."""
    left, right = divmod(int(name, 16), 2**HALF)
    left, right = _mixed(left, right, reversed(range(ROUNDS)))
    return from_hex(f"{right << HALF | left:016x}")


def _mixed(left: int, right: int, rounds: Iterable[int]) -> tuple[int, int]:
    for number in rounds:
        digest = salted_hmac(SALT, f"{number}.{right}", algorithm="sha256").digest()
        left, right = right, left ^ int.from_bytes(digest[: HALF // 8])
    return left, right
