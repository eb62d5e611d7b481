"""What the doctor finds."""

from __future__ import annotations

from typing import NamedTuple

DATABASE, STANDBY, UNCHECKED = "database", "standby", "unchecked"
#: After these there is nothing more to ask.
FINAL = {DATABASE, STANDBY}


class Diagnosis(NamedTuple):
    """`condition`: a word for programs, which does not change. `cure`: what to do; "" if it says so itself."""

    condition: str
    sentence: str
    cure: str = ""
