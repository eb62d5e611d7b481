"""What the doctor finds."""

from __future__ import annotations

from typing import NamedTuple


class Diagnosis(NamedTuple):
    """`condition`: a word for programs, which does not change. `cure`: what to do; "" if it says so itself."""

    condition: str
    sentence: str
    cure: str = ""
