"""The last log lines of an attempt, and its processor time, in the record of its error."""

from __future__ import annotations

import io
import json
import logging
import logging.config
import time
from contextlib import contextmanager

import pytest

from delayedq import hooks
from delayedq.attempt_log import LENGTH, AttemptHandler
from delayedq.compat import TASKS_LOGGER
from delayedq.core.masking import MASK
from delayedq.records import is_written
from delayedq.results import errors_with
from delayedq.results.message import recorded
from delayedq.worker.transitions import decision, transition
from tests.app.tasks import pay
from tests.worker.attempts import attempt_of, claimed, playing, run

log = logging.getLogger("shop.mail")


@contextmanager
def configured(**handler):
    """As LOGGING would, with a console that others read."""
    root, lines, console = logging.root, AttemptHandler.lines, io.StringIO()
    kept = root.handlers[:], root.level
    try:
        given = {"level": "INFO", "class": "delayedq.attempt_log.AttemptHandler", **handler}
        handlers = {"attempts": given, "console": {"class": "logging.StreamHandler", "stream": console}}
        top = {"handlers": ["attempts", "console"], "level": "INFO"}
        logging.config.dictConfig({"version": 1, "disable_existing_loggers": False, "handlers": handlers, "root": top})
        hooks.attempt_hooks.cache_clear()
        yield console
    finally:
        root.handlers[:], AttemptHandler.lines = kept[0], lines
        root.setLevel(kept[1])
        hooks.attempt_hooks.cache_clear()


def record_of(attempt):
    """What is stored of an attempt that failed."""
    ended = run(attempt)
    return json.loads(transition(ended, decision(ended), ended.finished).errors)[-1]


def fails():
    log.info("before %s", "lunch")
    log.debug("not of this level")
    try:
        _ = {}["seat"]
    except KeyError:
        log.exception("no seat")
    raise ValueError("no fuel")


async def afails():
    log.warning("in the event loop")
    raise ValueError("no fuel")


def computes():
    until = time.thread_time() + 0.02
    while time.thread_time() < until:
        pass
    raise ValueError("no fuel")


def test_the_lines_of_a_failed_attempt_are_in_its_record_with_their_moments():
    log.error("before")
    with configured() as console:
        log.error("of no attempt")
        record = record_of(playing(fails))
        told = [line.partition(" ") for line in record["log"]]
        assert [text for _, _, text in told] == [
            "INFO shop.mail: before lunch", "ERROR shop.mail: no seat (KeyError: 'seat')",
        ]  # fmt: skip
        assert all(at.startswith("+0.") for at, _, _ in told)
        assert "Traceback" in console.getvalue()  # others format the record as before


def test_only_the_last_lines_are_kept():
    def talks():
        for number in range(50):
            log.info("line %d", number)
        raise ValueError("no fuel")

    with configured(lines=3):
        assert [line.rpartition(" ")[2] for line in record_of(playing(talks))["log"]] == ["47", "48", "49"]


def test_an_async_task_has_its_own_lines_and_no_processor_time_as_it_shares_its_thread():
    with configured():
        record = record_of(playing(afails))
        assert [line.partition(" ")[2] for line in record["log"]] == ["WARNING shop.mail: in the event loop"]
        assert "processor_seconds" not in record


def test_the_processor_time_of_the_thread():
    with configured():
        record = record_of(playing(computes))
        assert 0.02 <= record["processor_seconds"] <= record["seconds"] + 0.001


def test_attempts_do_not_see_the_lines_of_others():
    with configured():
        record_of(playing(fails))
        assert "log" not in record_of(playing(computes))


def test_without_a_handler_nothing_is_kept():
    record = record_of(playing(fails))
    assert {"log", "processor_seconds"}.isdisjoint(record)
    assert playing(fails).log is None


def test_secrets_are_masked_before_a_line_is_cut():
    secret = "tok_4c11e9"
    with configured():
        attempt = attempt_of(pay, 7, secret, max_attempts=1)
        run(attempt)
        attempt.log.add(time.time(), f"INFO shop: {'x' * 180}{secret}")
        attempt.log.add(time.time(), f"INFO shop: two\nlines {secret}")
        (record,) = json.loads(errors_with(claimed(pay, 7, secret), ValueError(), "w", 1.0, attempt.log))
        assert "tok" not in "".join(record["log"])
        assert MASK in record["log"][1]
        assert "two lines" in record["log"][1]
        assert max(map(len, record["log"])) == LENGTH


def test_what_the_tasks_framework_logs_is_neither_kept_nor_made_for_the_handler():
    with configured():
        logging.root.handlers[:] = [one for one in logging.root.handlers if type(one) is AttemptHandler]
        assert not is_written(log, logging.INFO)
        attempt = playing(lambda: logging.getLogger(TASKS_LOGGER).error("of the framework"))
        run(attempt)
        assert attempt.log.lines == []


def test_results_have_them():
    with configured():
        (error,) = recorded(json.dumps([record_of(playing(fails))]))
        assert len(error.log) == 2
        assert error.processor_seconds >= 0


@pytest.mark.parametrize("lines", [0, 101, "3", True])
def test_a_wrong_number_of_lines_is_refused(lines):
    with pytest.raises(ValueError, match="keeps 1 to 100 lines"):
        AttemptHandler(lines)
