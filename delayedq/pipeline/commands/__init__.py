"""The steps of `run_pipeline`, one module each. A step takes the open pipeline and the parsed arguments."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from delayedq.exceptions import LakeUnusable
from delayedq.pipeline.commands.archive import run_archive
from delayedq.pipeline.commands.lake import run_check, run_compact, run_status, run_vacuum
from delayedq.pipeline.commands.load import run_load
from delayedq.pipeline.commands.replay import run_replay
from delayedq.pipeline.commands.report import run_report
from delayedq.pipeline.commands.restore import run_restore
from delayedq.pipeline.opening import opened, opened_without_spark
from delayedq.pipeline.spark.session import READ_ERRORS, explained

if TYPE_CHECKING:
    from collections.abc import Callable

    from delayedq.pipeline.opening import Options


def run(step: str, options: Options, tell: Callable[[str], object]) -> None:
    """Run a step by its name; `tell` gets each line for the operator. Raises PipelineError."""
    try:
        _run(step, options, tell)
    except LakeUnusable as error:
        raise LakeUnusable(f"{error} {SAFE[step]}") from error
    except (*READ_ERRORS, EOFError) as error:
        raise explained(error, step, SAFE[step]) from error


#: What a step that failed leaves behind.
SAFE = {
    "load": "Nothing of this load is in the queue.",
    "archive": "Nothing is lost: no row leaves the database before its copy was read back.",
    "report": "Nothing was changed.",
    "replay": "What was sent is recorded by message, and is not sent again.",
    "compact": "Nothing is lost: files count until others with the same rows do.",
    "check": "Nothing was changed.",
    "restore": "Nothing was restored.",
    "vacuum": "No file that anybody needs was deleted.",
    "status": "Nothing was changed.",
}

_ON_SPARK = {
    "load": run_load,
    "archive": run_archive,
    "report": run_report,
    "replay": run_replay,
    "compact": run_compact,
    "check": run_check,
}

_WITHOUT_SPARK = {"restore": run_restore, "vacuum": run_vacuum, "status": run_status}


def _run(step: str, options: Options, tell: Callable[[str], object]) -> None:
    if step in _WITHOUT_SPARK:
        _WITHOUT_SPARK[step](opened_without_spark(options, tell), options)
        return
    with opened(options, tell) as pipeline:
        started = time.monotonic()
        _ON_SPARK[step](pipeline, options)
        tell(f"Done in {time.monotonic() - started:.1f} s.")
