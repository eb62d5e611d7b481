"""The options of `run_workers` for those who monitor it, and `manage.py delayedq metrics` and `health`."""

from __future__ import annotations

import sys
import tempfile
from argparse import ArgumentTypeError
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from django.core.management.base import CommandError
from django.utils.translation import gettext as _

from delayedq.conf import ExtraMissing
from delayedq.management.arguments import age
from delayedq.management.telling import Exit, add_json, as_json, tell
from delayedq.operations.doctor import health_within
from delayedq.operations.queues import all_databases
from delayedq.operations.wording import printable
from delayedq.worker.endpoints import Endpoint, EndpointAnswer, Endpoints, HealthFile, Liveness, Reporting, listen
from delayedq.worker.tally import Tallies

if TYPE_CHECKING:
    from argparse import ArgumentParser
    from collections.abc import Iterator, Sequence

    from django.core.management.base import OutputWrapper

    from delayedq.worker.supervisor import Fleet

#: How long `health` waits for a database, unless it is told.
ANSWERED = timedelta(seconds=10)
#: The highest port.
LAST_PORT = 65_535


def add_monitoring(parser: ArgumentParser) -> None:
    where = "[ADDRESS:]PORT"
    parser.add_argument(
        "--metrics-port", type=listening, metavar=where, help="Answer Prometheus at /metrics (extra prometheus)."
    )
    parser.add_argument("--health-port", type=listening, metavar=where, help="Answer probes at /live and /ready.")
    parser.add_argument(
        "--health-file", type=Path, metavar="FILE", help="Write this file each second while workers live."
    )


def listening(text: str) -> tuple[str, int]:
    """An address ("": all) and a port, for argparse."""
    address, _, port = text.rpartition(":")
    in_brackets = address.startswith("[") and address.endswith("]")
    if not port.isdecimal() or not 0 < int(port) <= LAST_PORT or (":" in address and not in_brackets):
        raise ArgumentTypeError(f"must be PORT or ADDRESS:PORT, as 9100, 127.0.0.1:9100 or [::1]:9100, not {text!r}")
    return address[1:-1] if in_brackets else address, int(port)


@dataclass(frozen=True, slots=True)
class Monitoring:
    """What was asked for. `tallies`: the directory in which processes count; None if nobody reads it."""

    metrics: tuple[str, int] | None
    health: tuple[str, int] | None
    file: Path | None
    tallies: Path | None

    def of(self, fleets: Sequence[Fleet]) -> tuple[Reporting, Endpoints]:
        liveness, endpoints = Liveness(fleets), []
        if self.metrics and self.tallies:
            endpoints.append(_metrics(*self.metrics, self.tallies))
        if self.health:
            endpoints.append(liveness.endpoint(*self.health))
        return Reporting(liveness, HealthFile(self.file) if self.file else None), Endpoints(endpoints)


@contextmanager
def monitored(options: dict[str, Any]) -> Iterator[Monitoring]:
    """Raises CommandError for a port that is taken, a file that can't be written, and without the library."""
    metrics, health, file = options["metrics_port"], options["health_port"], options["health_file"]
    for option, place in (("--metrics-port", metrics), ("--health-port", health)):
        if place:
            _check_port(option, *place)
    if metrics and health and metrics[1] == health[1]:
        raise CommandError(_("--metrics-port and --health-port must be two ports."))
    if file and not file.parent.is_dir():
        raise CommandError(_("--health-file: there is no directory %(path)r.") % {"path": str(file.parent)})
    if file:
        _check_file(file)
    if metrics is None:
        yield Monitoring(metrics, health, file, None)
        return
    _library()
    with tempfile.TemporaryDirectory(prefix="delayedq-", ignore_cleanup_errors=True) as directory:
        yield Monitoring(metrics, health, file, Path(directory))


def show_metrics(stdout: OutputWrapper, options: dict[str, Any]) -> None:
    """Raises CommandError without the library."""
    _library()
    from delayedq import metrics

    if options["json"]:
        samples = [sample for family in metrics.Collector().collect() for sample in family.samples]
        stdout.write(as_json([{"name": one.name, "labels": one.labels, "value": one.value} for one in samples]))
        return
    stdout.write(metrics.exposed()[0].decode(), ending="")


def add_health(parser: ArgumentParser) -> None:
    parser.add_argument("--oldest-due", type=age, metavar="AGE", help="Fail if a message has been due for longer; 60s.")
    parser.add_argument("--workers-here", action="store_true", help="Fail if no worker of this host lives.")
    parser.add_argument(
        "--timeout", type=age, default=ANSWERED, metavar="AGE", help="Fail if a database takes longer (default: 10s)."
    )
    add_json(parser)


def run_health(stdout: OutputWrapper, options: dict[str, Any]) -> None:
    """Say what was checked in each database. Exits with 1 if something failed."""
    timeout = options["timeout"]
    asked = {"oldest_due": options["oldest_due"], "workers_here": options["workers_here"]}
    checks = [(store.alias, check) for store in all_databases() for check in health_within(timeout, store, **asked)]
    passed, failed = _("ok"), _("FAILED")
    said = [f"{passed if check.passed else failed}: {printable(check.sentence)}" for _alias, check in checks]
    tell(stdout, options, "\n".join(said), [{"database": alias, **check._asdict()} for alias, check in checks])
    if not all(check.passed for _alias, check in checks):
        sys.exit(Exit.FAILED)


def _metrics(address: str, port: int, directory: Path) -> Endpoint:
    from delayedq import metrics

    tallies = Tallies(directory)
    return Endpoint(address, port, {"/metrics": lambda accept: EndpointAnswer(*metrics.exposed(accept, tallies))})


def _library() -> None:
    from delayedq import metrics

    try:
        metrics.require_library()
    except ExtraMissing as error:
        raise CommandError(str(error)) from None


def _check_file(file: Path) -> None:
    """A file that could not be written would have a probe end workers that are well.

    It is not made here: a probe that finds it takes the workers for started, and they don't take signals yet.
    """
    try:
        with file.open("a") if file.exists() else tempfile.TemporaryFile(dir=file.parent):
            pass
    except OSError as error:
        raise CommandError(f"--health-file: {file}: {error.strerror}") from None


def _check_port(option: str, address: str, port: int) -> None:
    try:
        listen(address, port).close()
    except OSError as error:
        about = {"option": option, "port": port, "address": address or _("this host"), "error": error}
        said = _("%(option)s: nothing can listen on port %(port)s of %(address)s: %(error)s") % about
        raise CommandError(said) from None
