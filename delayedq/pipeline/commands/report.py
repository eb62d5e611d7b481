"""The step `report`: the figures of a span of time, as a page and as tables."""

from __future__ import annotations

from datetime import UTC
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

from delayedq.conf import get_settings
from delayedq.exceptions import InvalidOption
from delayedq.pipeline.commands.view import viewed
from delayedq.pipeline.report.facts import COLUMNS

if TYPE_CHECKING:
    from datetime import datetime

    from pyspark.sql import DataFrame

    from delayedq.pipeline.opening import Options, Pipeline


def run_report(pipeline: Pipeline, options: Options) -> None:
    """Measure what the lake and the database hold, and write the page. Raises InvalidOption, LakeUnusable.

    What ended before the window is not read: no figure has it. What ended after it is, as it may have waited in it.
    """
    since, until = _window(pipeline, options)
    first = None if since is None else since.date()
    if options["only_lake"]:
        _report(pipeline, pipeline.lake.history(first), since, until, options)
        return
    with viewed(pipeline, use_lake=not options["no_lake"], columns=COLUMNS, since=first) as view:
        if view.lake is None and not options["no_lake"]:
            where = f"no lake at {pipeline.lake_path} yet" if pipeline.lake_path else "no lake"
            pipeline.tell(f"There is {where}: this is about what the database holds.")
        _report(pipeline, view.messages, since, until, options)


def _window(pipeline: Pipeline, options: Options) -> tuple[datetime | None, datetime | None]:
    """As the options say, in UTC. None: where the history begins or ends. Raises InvalidOption."""
    since, until, last = options["since"], options["until"], options["last"]
    if last is not None:
        until = (until or pipeline.store.now()).astimezone(UTC)  # Django's TIME_ZONE of a database may be another
        try:
            since = until - last
        except OverflowError:
            raise InvalidOption(f"--last: so long before {until} there is no year.") from None
    if since is not None and until is not None and until <= since:
        raise InvalidOption(f"--until, {until}, is not later than --since, {since}.")
    return since, until


def _check_libraries() -> None:
    """Raises ModuleNotFoundError for what draws and writes the page, before anything is measured."""
    for name in ("jinja2", "matplotlib"):
        if find_spec(name) is None:
            raise ModuleNotFoundError(name=name)


def _report(
    pipeline: Pipeline, messages: DataFrame, since: datetime | None, until: datetime | None, options: Options
) -> None:
    from delayedq.pipeline.report import tables
    from delayedq.pipeline.report.tables import Target

    _check_libraries()
    Thread(target=import_module, args=("delayedq.pipeline.report.page",)).start()  # it takes as long as a query
    if since is None or until is None:
        first, last = tables.span(messages) or (None, None)
        since, until = since or first, until or last
    if since is None or until is None or until <= since:
        pipeline.tell("No message has ended in this time: there is nothing to report.")
        return
    pipeline.tell(f"Measuring {since:%Y-%m-%d %H:%M:%S} to {until:%Y-%m-%d %H:%M:%S} UTC ...")
    target = Target(options["within"].total_seconds(), options["share"])
    measured = tables.measure(messages, since, until, target=target, lease=get_settings().LEASE)
    from delayedq.pipeline.report import page  # matplotlib and jinja2, which the other steps don't need

    written = page.write(measured, Path(options["output"]), pipeline.store.now())
    pipeline.tell(f"The report is {written.absolute()}.")
