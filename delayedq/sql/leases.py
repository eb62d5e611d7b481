"""Who holds a message: the predicates *held*, *run out* and *free*, as conditions on `delayedq_message`.

A lease holds until `leased_until`. Where another transaction has locked the row, it is renewed beside it, in
`delayedq_lockedrenewal`: a lease has run out if neither holds. `models.message` says the same in Django's words, for
queries. Claims ask `unheld`, or `run_out_by_claim` alone where they have asked for the lease before.
"""

from __future__ import annotations

#: Where renewals stand that could not be written into their rows.
RENEWALS = "delayedq_lockedrenewal"


def renewed_beside(message: str, now: str) -> str:
    """Its lease was renewed beside its row, and holds. message: the name of the table in the statement."""
    return f"""EXISTS (
        SELECT 1 FROM {RENEWALS} AS renewal
        WHERE renewal.message_id = {message}.id AND renewal.lease_token = {message}.lease_token
            AND renewal.leased_until > {now}
    )"""


def held(message: str, now: str) -> str:
    """A worker holds it."""
    return f"lease_token IS NOT NULL AND (leased_until > {now} OR {renewed_beside(message, now)})"


def run_out(message: str, now: str) -> str:
    """A worker held it and lost it, and no other has claimed it."""
    return f"lease_token IS NOT NULL AND leased_until <= {now} AND NOT {renewed_beside(message, now)}"


def free(message: str, now: str) -> str:
    """Nobody holds it."""
    return f"(lease_token IS NULL OR {run_out(message, now)})"


# What claims ask: of a row that was found by an index, and whose lease is mostly none.


def unheld(message: str, now: str, *, never: str, hint: str = "") -> str:
    """`free`, where the subquery is evaluated only for leases that ran out. never, hint: see `run_out_by_claim`."""
    return f"({message}.lease_token IS NULL OR {run_out_by_claim(message, now, never=never, hint=hint)})"


def run_out_by_claim(message: str, now: str, *, never: str, hint: str = "") -> str:
    """`run_out` of a message that has a lease.

    never: what stands for the renewal of one that was not renewed. hint: the index of renewals, where the database is
    to be told which.
    """
    return f"""{message}.leased_until <= {now} AND coalesce((
        SELECT renewal.leased_until FROM {RENEWALS} AS renewal {hint}
        WHERE renewal.message_id = {message}.id AND renewal.lease_token = {message}.lease_token
    ), {never}) <= {now}"""
