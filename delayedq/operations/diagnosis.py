"""What the doctor finds."""

from __future__ import annotations

from typing import NamedTuple

DATABASE, STANDBY, UNCHECKED, HIDDEN = "database", "standby", "unchecked", "hidden sessions"
#: After these there is nothing more to ask.
FINAL = {DATABASE, STANDBY}


class Diagnosis(NamedTuple):
    """`condition`: a word for programs, which does not change. `cure`: what to do; "" if it says so itself."""

    condition: str
    sentence: str
    cure: str = ""
