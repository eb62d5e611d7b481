"""How much is tried: a little, and the same in each run; or more, and something new, as the environment says.

DELAYEDQ_FUZZ=100 pytest tests/fuzz -m "" --timeout 0     # a hundred times as many examples
"""

from __future__ import annotations

import os
from contextlib import contextmanager

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

#: 1: what each run tries.
EFFORT = int(os.environ.get("DELAYEDQ_FUZZ", "1"))


def tried(examples):
    """The settings of a property that is tried so often in each run."""
    return settings(
        max_examples=examples * EFFORT,
        derandomize=EFFORT == 1,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )


#: Texts that something may read otherwise: escapes, quotes, paths, lone surrogates, characters that turn others round.
NASTY = (
    "",
    " ",
    "\x00",
    "a\x00b",
    "\ud800",
    "\udfff\ud800",
    "\u202e",
    "\x1b[31m",
    "' OR 1=1 --",
    '"; DROP TABLE delayedq_message; --',
    "%s",
    "%(id)s",
    "{0.__class__}",
    "${jndi:ldap://a}",
    "../../etc/passwd",
    "/etc/passwd",
    "os.system",
    "builtins.eval",
    "__import__",
    "<script>alert(1)</script>",
    "{{ 7|add:7 }}",
    "9" * 400,
    "-1",
    "1e999",
    "NaN",
    "x" * 300,
)

texts = st.text(max_size=12) | st.sampled_from(NASTY)


@contextmanager
def refused(kind, *said):
    """What is tried may raise this error, in whose text stands what was said."""
    try:
        yield
    except kind as error:
        missing = [text for text in said if text not in str(error)]
        if missing or not str(error).strip():
            raise AssertionError(f"{error} does not say {missing}") from error
