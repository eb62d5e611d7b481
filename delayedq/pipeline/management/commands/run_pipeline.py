"""`manage.py run_pipeline`: its arguments; what they do is in `delayedq.pipeline.commands`."""

from __future__ import annotations

from argparse import SUPPRESS
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from django.core.management.base import CommandError, CommandParser

from delayedq.exceptions import ArchiveBusy, PipelineError
from delayedq.extras import is_about_an_extra, told
from delayedq.management.arguments import positive
from delayedq.management.migrations import MigratedCommand
from delayedq.pipeline import ending
from delayedq.pipeline.management import values
from delayedq.pipeline.management.values import day, duration, moment, pair, positive_number, share

if TYPE_CHECKING:
    from argparse import ArgumentParser


class Command(MigratedCommand):
    help = "Moves messages between files, the queue and its lake, and reports on them, with Spark."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(ending.OPTION, action="store_true", help=SUPPRESS)  # of `pipeline.tasks`
        steps = parser.add_subparsers(dest="step", required=True)
        lake = CommandParser(add_help=False)
        lake.add_argument("--lake", metavar="PATH", help="The lake (DELAYEDQ['LAKE']).")
        place = CommandParser(add_help=False, parents=[lake])
        place.add_argument("--master", help="Where Spark runs (DELAYEDQ['SPARK_MASTER'], or all cores here).")
        place.add_argument("--remote", metavar="URL", help="A Spark Connect server (DELAYEDQ['SPARK_REMOTE']).")
        place.add_argument(
            "--address", metavar="WHERE", help="Where executors find the database's URL: env:NAME or file:PATH."
        )
        _add_load(steps.add_parser("load", parents=[place], help="Load rows of files as messages of a task."))
        _add_archive(steps.add_parser("archive", parents=[place], help="Move old history into the lake."))
        _add_report(steps.add_parser("report", parents=[place], help="Write a page and tables about what happened."))
        _add_replay(
            steps.add_parser("replay", parents=[place], help="Send messages of the lake and the database again.")
        )
        values.add_steps(steps, place, lake)

    def handle(self, *, step: str, until_stdin_ends: bool = False, **options: Any) -> None:
        if until_stdin_ends:
            ending.end_with_stdin()
        with ending.unwound_by_sigterm():
            self._run(step, options)

    def _run(self, step: str, options: dict[str, Any]) -> None:
        try:
            from delayedq.pipeline import commands  # what they need is an extra

            commands.run(step, options, self._tell)
        except ArchiveBusy as error:
            raise CommandError(str(error), returncode=ending.BUSY) from error
        except PipelineError as error:
            raise CommandError(str(error)) from error
        except ImportError as error:
            if not is_about_an_extra(error):
                raise
            raise CommandError(told(error, "spark")) from error

    def _tell(self, line: str) -> None:
        self.stdout.write(line)
        self.stdout.flush()


def _add_load(parser: ArgumentParser) -> None:
    parser.add_argument("files", nargs="+", metavar="FILE", help="CSV, TSV, JSON lines or Parquet; .gz of the texts.")
    parser.add_argument("--task", required=True, metavar="PATH", help="The task, as package.tasks.name.")
    parser.add_argument("--key", metavar="SOURCE", help="A column, or a template such as '{carrier}{flight}/{day}'.")
    parser.add_argument("--at", metavar="SOURCE", help="When it is due: a column or a template (at once).")
    parser.add_argument("--at-format", metavar="FORMAT", help="The form of --at, as strptime has it (ISO 8601).")
    parser.add_argument("--timezone", metavar="ZONE", help="The zone of times without one, such as America/New_York.")
    parser.add_argument(
        "--argument", action="append", type=pair, default=[], metavar="NAME=SOURCE", help="An argument of the task."
    )
    parser.add_argument("--ignore", action="append", default=[], metavar="COLUMN", help="Ignore a column.")
    parser.add_argument("--ignore-others", action="store_true", help="Ignore all columns that nothing uses.")
    parser.add_argument(
        "--duplicates",
        choices=["reject", "first", "last"],
        default="reject",
        help="Of rows with one key, refuse all, or take the first or the last (reject).",
    )
    parser.add_argument(
        "--null", default="", metavar="TEXT", help="The text that means no value in a CSV file (an empty field)."
    )
    parser.add_argument("--multiline", action="store_true", help="Fields of a CSV file may have line breaks.")
    parser.add_argument(
        "--spread", type=duration, default=timedelta(), metavar="TIME", help="Delay each by up to 10m, 2h, ..."
    )
    parser.add_argument("--rejects", metavar="FILE", help="Where refused rows go (FILE.rejects.jsonl).")
    parser.add_argument(
        "--load-id", metavar="ID", help="Names this load: it is loaded once (made of files and options)."
    )
    parser.add_argument("--dry-run", action="store_true", help="Check the rows, and load nothing.")


def _add_archive(parser: ArgumentParser) -> None:
    parser.add_argument("--older-than", type=duration, metavar="TIME", help="As 7d or 12h (DELAYEDQ['ARCHIVE_AFTER']).")
    parser.add_argument(
        "--batch-rows", type=positive, metavar="N", help="Approximate number of rows of a batch (5,000,000)."
    )
    parser.add_argument(
        "--abandon", action="store_true", help="Give up the batch that is open, and move nothing; no row is deleted."
    )


def _add_report(parser: ArgumentParser) -> None:
    parser.add_argument("--output", default="delayedq-report", metavar="DIR", help="Where it goes (delayedq-report).")
    begins = parser.add_mutually_exclusive_group()
    begins.add_argument("--since", type=moment, metavar="TIME", help="From then (UTC; the first message).")
    begins.add_argument("--last", type=duration, metavar="TIME", help="Of the last 7d, 12h, ... before --until (now).")
    parser.add_argument("--until", type=moment, metavar="TIME", help="Until before then (UTC; the last message).")
    parser.add_argument(
        "--within",
        type=duration,
        default=timedelta(seconds=1),
        metavar="TIME",
        help="Messages should start this soon (1s).",
    )
    parser.add_argument("--share", type=share, default=0.95, help="The share of messages that --within is for (0.95).")
    places = parser.add_mutually_exclusive_group()
    places.add_argument("--only-lake", action="store_true", help="Leave out what the database still holds.")
    places.add_argument("--no-lake", action="store_true", help="Read the database alone.")


def _add_replay(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--since", type=day, required=True, metavar="DAY", help="Those that ended on this day (UTC) or later."
    )
    parser.add_argument("--until", type=day, metavar="DAY", help="And before this one (the day after --since).")
    parser.add_argument(
        "--state",
        action="append",
        choices=["succeeded", "failed", "cancelled"],
        help="Only these outcomes (failed; with --speed also succeeded).",
    )
    parser.add_argument("--task", action="append", default=[], metavar="PATH", help="Of these tasks or queues only.")
    parser.add_argument(
        "--speed", type=positive_number, metavar="N", help="Keep the original intervals, N times as fast."
    )
    parser.add_argument("--replay-id", metavar="ID", help="Names this replay: it is sent once (made of the options).")
    parser.add_argument("--send", action="store_true", help="Send them; without it they are only counted.")
