"""`manage.py delayedq workers-needed`: how many worker processes the messages need, for what scales workers."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from math import ceil
from typing import TYPE_CHECKING, Any

from django.db import Error
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from delayedq.core.scaling import threads_needed
from delayedq.management.arguments import age, positive, queue_names
from delayedq.management.backends import ask, chosen_store
from delayedq.management.doctor import as_told
from delayedq.operations.backlogs import demand

if TYPE_CHECKING:
    from argparse import ArgumentParser

    from django.core.management.base import OutputWrapper


def add_needed(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--target-latency", type=age, required=True, metavar="AGE", help="The time within which messages start: 30s."
    )
    parser.add_argument("--threads", type=positive, default=4, metavar="N", help="Threads of a worker process (4).")
    parser.add_argument("--queues", type=queue_names, metavar="A,B", help="Of these queues only (default: all).")
    parser.add_argument("--json", action="store_true", help="For programs: an object.")


def run_needed(out: OutputWrapper, options: dict[str, Any]) -> None:
    """Of one database: that of --backend, if there are several."""
    store, _backends = chosen_store(options["backend"])
    queues: tuple[str, ...] | None = options["queues"]
    try:
        ask(store)
        seen = demand(store, lambda queue: queues is None or queue in queues)
    except Error as error:
        if not options["json"]:
            raise
        out.write(json.dumps(as_told(store, error)))
        sys.exit(1)
    threads = threads_needed(seen, options["target_latency"].total_seconds())
    processes = ceil(threads / options["threads"])
    if options["json"]:
        out.write(json.dumps({"processes": processes, "threads": threads, **asdict(seen)}))
        return
    needed = ngettext("%(number)s worker process is needed", "%(number)s worker processes are needed", processes)
    said = _("%(needed)s, that is %(threads)s threads: %(due)s due, the first for %(oldest).1f s; %(rate).2f/s come.")
    names = {"needed": needed % {"number": processes}, "threads": threads, "due": seen.due}
    out.write(said % {**names, "oldest": seen.oldest_due, "rate": seen.arrivals})
