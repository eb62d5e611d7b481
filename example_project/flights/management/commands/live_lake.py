from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from django.core.management.base import BaseCommand, CommandError

from delayedq.pipeline.address import address_of
from delayedq.pipeline.spark.session import spark_session
from example_project.flights.live import stream

if TYPE_CHECKING:
    from argparse import ArgumentParser


class Command(BaseCommand):
    help = (
        "Keep a Delta table of the ends of messages minutes behind the queue, each end once, until it is stopped. "
        "A message that is retried after its end has a row of each end."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("path", type=Path, help="the directory of the table")
        parser.add_argument("--every", type=int, default=60, help="seconds between two batches (default: 60)")
        parser.add_argument("--once", action="store_true", help="add what has ended, and stop")

    def handle(self, *, path: Path, every: int, once: bool, **_: Any) -> None:
        pause = None if once else timedelta(seconds=every)
        with address_of("default") as address, spark_session() as spark:
            try:
                query = stream(spark, address, path.absolute(), pause)
            except ValueError as error:
                raise CommandError(str(error)) from error
            query.awaitTermination()
