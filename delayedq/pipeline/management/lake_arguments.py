"""The arguments of the steps of `run_pipeline` that keep the lake."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from delayedq.management.arguments import positive
from delayedq.pipeline.management.values import duration, ids, moment

if TYPE_CHECKING:
    from argparse import ArgumentParser


def add_steps(steps: Any, place: ArgumentParser, lake: ArgumentParser) -> None:
    """place: the arguments of steps that run on Spark. lake: of those that need none."""
    _add_compact(steps.add_parser("compact", parents=[place], help="Join small files of the lake."))
    steps.add_parser("check", parents=[place], help="Compare the lake with its statistics and the archive's records.")
    steps.add_parser("upgrade-lake", parents=[place], help="Converts a lake that an older delayedq has written.")
    _add_vacuum(steps.add_parser("vacuum", parents=[lake], help="Deletes files that nobody needs any more."))
    steps.add_parser("status", parents=[lake], help="Tells what the lake holds, and how far the archive is.")
    _add_restore(steps.add_parser("restore", parents=[lake], help="Puts messages of the lake back into the history."))


def _add_compact(parser: ArgumentParser) -> None:
    parser.add_argument("--small", type=positive, metavar="MB", help="Files below this size are joined (64).")


def _add_vacuum(parser: ArgumentParser) -> None:
    parser.add_argument("--older-than", type=duration, metavar="TIME", help="Keep what is younger, as 14d (7d).")
    parser.add_argument("--force", action="store_true", help="Allow an age below 7d.")
    parser.add_argument("--dry-run", action="store_true", help="Name the files, and delete none.")


def _add_restore(parser: ArgumentParser) -> None:
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--batch", type=int, metavar="N", help="All of this batch of the archive.")
    which.add_argument("--ids", type=ids, metavar="N,N", help="These messages.")
    which.add_argument("--since", type=moment, metavar="TIME", help="What ended from then (UTC).")
    parser.add_argument("--until", type=moment, metavar="TIME", help="And before then (UTC); with --since.")
