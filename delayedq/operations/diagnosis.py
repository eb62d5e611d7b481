"""What the doctor finds."""

from __future__ import annotations

from typing import NamedTuple

DATABASE, STANDBY, UNCHECKED, HIDDEN = "database", "standby", "unchecked", "hidden sessions"
#: There are no tables; some migrations of them are pending.
NO_TABLES, MIGRATIONS = "no tables", "migrations"
#: After these there is nothing more to ask.
FINAL = {DATABASE, STANDBY, NO_TABLES}


class Diagnosis(NamedTuple):
    """`condition`: a word for programs, which does not change. `cure`: what to do; "" if it says so itself."""

    condition: str
    sentence: str
    cure: str = ""
