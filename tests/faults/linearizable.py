"""Whether calls that overlapped can have taken place one after the other (Wing and Gong, "Testing and Verifying
Concurrent Objects", 1993), with a memory of what was tried.
"""

from __future__ import annotations


def is_linearizable(records, outcomes, ends_well, start):
    """Whether there is an order of the calls that each answers as it did, and keeps those apart that did not overlap.

    `outcomes(state, record)`: the states to which the call may lead, if it answers so; none, if it can't. A state is
    hashable. `ends_well(state)`: whether this may be what is left.
    """
    return _Search(records, outcomes, ends_well).reaches((), start)


class _Search:
    def __init__(self, records, outcomes, ends_well):
        self._records, self._outcomes, self._ends_well = sorted(records, key=lambda one: one.began), outcomes, ends_well
        self._tried = set()

    def reaches(self, done, state):
        """Whether the rest can follow, once these (by their places) have led to this state."""
        rest = [place for place in range(len(self._records)) if place not in done]
        if not rest:
            return self._ends_well(state)
        first_end = min(self._records[place].ended for place in rest)
        for place in rest:
            if self._records[place].began > first_end:
                break
            for after in self._outcomes(state, self._records[place]):
                known = frozenset((*done, place)), after
                if known in self._tried:
                    continue
                self._tried.add(known)
                if self.reaches((*done, place), after):
                    return True
        return False
