"""What nobody would write is not made: neither records of the log, nor the results that they are about."""

from __future__ import annotations

import logging
import logging.config
from contextlib import contextmanager
from unittest import TestCase

import pytest
from django.test import override_settings
from django.utils.log import DEFAULT_LOGGING

from delayedq import results, signals
from delayedq.compat import TASKS_LOGGER, task_finished, task_started
from delayedq.records import is_written, leave_failures_to_us
from delayedq.results import reading
from tests.worker.attempts import playing, run

TASKS = logging.getLogger(TASKS_LOGGER)
TOP = logging.getLogger(TASKS_LOGGER.partition(".")[0])


@contextmanager
def djangos_logging(debug=False):
    """As in a project whose settings have no LOGGING."""
    kept = [(each, each.handlers[:], each.filters[:], each.level) for each in (logging.root, TOP, TASKS)]
    try:
        logging.root.handlers[:] = []
        TASKS.setLevel(logging.NOTSET)
        logging.config.dictConfig(DEFAULT_LOGGING)
        if TOP.name != "django":  # the backport's records go to the root
            TOP.handlers[:] = logging.getLogger("django").handlers
            TOP.setLevel(logging.INFO)
        with override_settings(DEBUG=debug):
            yield TOP
    finally:
        for each, handlers, filters, level in kept:
            each.handlers[:], each.filters[:] = handlers, filters
            each.setLevel(level)


class Kept(logging.Handler):
    def __init__(self):
        super().__init__()
        self.texts = []

    def emit(self, record):
        self.texts.append(record.getMessage())


class Everything(Kept):
    def handle(self, record):
        self.emit(record)


@pytest.fixture
def made(monkeypatch):
    """How many results were built, and which records made."""
    found = {"results": 0, "records": []}
    build, factory = results.make, logging.getLogRecordFactory()

    def make(*args, **kwargs):
        found["results"] += 1
        return build(*args, **kwargs)

    def record(*args, **kwargs):
        found["records"].append(factory(*args, **kwargs))
        return found["records"][-1]

    for module in (results, reading):
        monkeypatch.setattr(module, "make", make)
    logging.setLogRecordFactory(record)
    yield found
    logging.setLogRecordFactory(factory)


def boom():
    raise ValueError("no fuel")


def test_with_djangos_default_logging_a_drain_builds_no_result_and_no_record(made):
    with djangos_logging():
        for _ in range(3):
            run(playing(lambda: None))

    assert made == {"results": 0, "records": []}


def test_a_failure_in_a_worker_is_left_to_our_line_and_builds_nothing(made):
    with djangos_logging():
        TASKS.addFilter(leave_failures_to_us)
        run(playing(boom, max_attempts=1))

    assert made == {"results": 0, "records": []}


def test_with_debug_both_are_made_and_written(made):
    with djangos_logging(debug=True) as logger:
        kept = Kept()
        kept.filters = logger.handlers[0].filters
        logger.handlers[:] = [kept]
        run(playing(lambda: None))

    assert made["results"] == 1
    assert [text.rpartition("state=")[2] for text in kept.texts] == ["RUNNING", "SUCCESSFUL"]


def test_what_a_handler_takes_is_logged_from_the_moment_it_is_there(made):
    with djangos_logging() as logger:
        run(playing(lambda: None))
        logger.addHandler(kept := Kept())
        run(playing(lambda: None))
        with TestCase().assertLogs(TASKS, "INFO") as logs:
            run(playing(lambda: None))

    assert made["results"] == 2
    assert (len(kept.texts), len(logs.records)) == (2, 2)


@pytest.mark.parametrize("debug", [False, True])
@pytest.mark.parametrize("level", [logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR])
def test_the_answer_is_that_of_the_handlers_of_django(debug, level):
    with djangos_logging(debug=debug):
        written = level >= logging.ERROR if not debug else level >= logging.INFO

        assert is_written(TASKS, level) is written


@pytest.mark.parametrize(
    ("handlers", "expected"),
    [([], False), ([logging.NullHandler()], False), ([Kept()], True), ([logging.NullHandler(), Kept()], True)],
)
def test_handlers_count_that_write(handlers, expected):
    with djangos_logging() as logger:
        logger.handlers[:] = handlers

        assert is_written(TASKS, logging.INFO) is expected


def test_without_any_handler_warnings_go_to_the_last_resort():
    with djangos_logging() as logger:
        logger.handlers[:] = []

        assert [is_written(TASKS, level) for level in (logging.INFO, logging.WARNING)] == [False, True]


def test_filters_that_are_not_djangos_see_each_record_and_so_do_handlers_that_ask_none():
    def unknown(_):
        return False

    for handler, own in ((Kept(), [unknown]), (Everything(), [])):
        with djangos_logging() as logger:
            handler.filters = [*own, *logger.handlers[0].filters]
            logger.handlers[:] = [handler]

            assert is_written(TASKS, logging.INFO)
    with djangos_logging():
        TASKS.addFilter(unknown)

        assert is_written(TASKS, logging.INFO)


def test_a_library_that_takes_the_place_of_callhandlers_sees_each_record(monkeypatch):
    """As Sentry's does, for its breadcrumbs."""
    seen = []
    before = logging.Logger.callHandlers
    monkeypatch.setattr(
        logging.Logger, "callHandlers", lambda self, record: seen.append(record) or before(self, record)
    )
    with djangos_logging():
        run(playing(lambda: None))

    assert len(seen) == 2


def test_a_logger_that_does_not_propagate_is_asked_alone():
    with djangos_logging() as logger:
        logger.addHandler(Kept())
        TASKS.propagate = False
        TASKS.addHandler(logging.NullHandler())
        try:
            assert not is_written(TASKS, logging.INFO)
        finally:
            TASKS.propagate = True


def test_other_receivers_get_the_signal_whatever_is_written(made):
    heard = []

    def receive(task_result, **_):
        heard.append(task_result.status)

    task_started.connect(receive)
    task_finished.connect(receive)
    try:
        with djangos_logging():
            assert signals.wanted(task_started, logging.INFO)
            run(playing(lambda: None))
    finally:
        task_started.disconnect(receive)
        task_finished.disconnect(receive)

    assert [str(status) for status in heard] == ["RUNNING", "SUCCESSFUL"]
