"""Which errors `retry_on` and `give_up_on` mean."""

from __future__ import annotations

import pytest

from delayedq.core.errors import check_error_choice, may_retry

BUSY = ConnectionResetError("busy")


@pytest.mark.parametrize(
    ("retry_on", "give_up_on", "expected"),
    [
        (None, None, True),
        (OSError, None, True),
        (ValueError, None, False),
        ((ValueError, OSError), None, True),
        ([ValueError], None, False),
        (None, OSError, False),
        (None, [ValueError], True),
        (OSError, ConnectionError, False),
        (lambda error: "busy" in str(error), None, True),
        (lambda error: "gone" in str(error), None, False),
        (None, lambda error: "busy" in str(error), False),
    ],
)
def test_what_may_follow_an_error(retry_on, give_up_on, expected):
    assert may_retry(BUSY, retry_on, give_up_on) is expected


@pytest.mark.parametrize("value", [OSError, (OSError, ValueError), [KeyboardInterrupt], print, None])
def test_what_names_errors(value):
    check_error_choice(value)


@pytest.mark.parametrize("value", [5, "OSError", int, [OSError, 5], [], OSError("busy"), (int,)])
def test_what_names_no_errors_is_refused(value):
    with pytest.raises(ValueError, match="must be an exception class, several of them, or a function of the error"):
        check_error_choice(value)
