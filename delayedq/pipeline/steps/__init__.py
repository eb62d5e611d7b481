"""The steps of `run_pipeline`, one module each. A step takes the open pipeline and the parsed arguments."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from delayedq.pipeline.opening import opened
from delayedq.pipeline.spark.failures import SPARK_ERRORS, explained
from delayedq.pipeline.steps.archive import run_archive
from delayedq.pipeline.steps.load import run_load
from delayedq.pipeline.steps.replay import run_replay
from delayedq.pipeline.steps.report import run_report

if TYPE_CHECKING:
    from collections.abc import Callable

    from delayedq.pipeline.opening import Options


def run(step: str, options: Options, tell: Callable[[str], object]) -> None:
    """Run a step by its name; `tell` gets each line for the operator. Raises PipelineError."""
    try:
        _run(step, options, tell)
    except (*SPARK_ERRORS, OSError) as error:
        raise explained(error, step, SAFE[step]) from error


#: What a step that failed leaves behind.
SAFE = {
    "load": "Nothing of this load is in the queue.",
    "archive": "Nothing is lost: no row leaves the database before its copy was read back.",
    "report": "Nothing was changed.",
    "replay": "What was sent is recorded by message, and is not sent again.",
}


def _run(step: str, options: Options, tell: Callable[[str], object]) -> None:
    steps = {"load": run_load, "archive": run_archive, "report": run_report, "replay": run_replay}
    with opened(options, tell) as pipeline:
        started = time.monotonic()
        steps[step](pipeline, options)
        tell(f"Done in {time.monotonic() - started:.1f} s.")
