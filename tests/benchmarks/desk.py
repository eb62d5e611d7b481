"""Measures each page of the desk, and taking the next item, with many open items and as many decided ones.

    uv run --group test python -m tests.benchmarks.desk [postgresql] [mariadb] [sqlite] [--items N] [--rounds N]

Prints the median of the rounds in milliseconds, and the mean of the processor time that this process and the database
used: it says what a page costs on a busy machine, too. The open items are of three queues and 50 people: two in ten are
held, one is postponed, one is pending review, and six wait; one in a hundred of what was held has run out.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from tests.server import USER, mariadb_socket, postgresql_socket

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from datetime import datetime

QUEUES = ("refunds", "claims", "letters")
PEOPLE, CHUNK = 50, 5_000
STATES = ["assigned", "assigned", "postponed", "review", *["waiting"] * 6]


def main() -> None:
    """Each database in a process of its own, since Django is configured once per process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("databases", nargs="*", choices=[[], *SERVERS], metavar="DATABASE")
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        inside(options.items, options.rounds)
        return
    numbers = ["--items", str(options.items), "--rounds", str(options.rounds)]
    for name in options.databases or SERVERS:
        say(f"{name}, {options.items:,} open items")
        with SERVERS[name]() as url:
            settings = {"DATABASE_URL": url, "DJANGO_SETTINGS_MODULE": "tests.worker_settings"}
            command = [sys.executable, "-m", "tests.benchmarks.desk", "--inside", *numbers]
            subprocess.run(command, env=os.environ | settings, check=True)


@contextmanager
def postgresql() -> Iterator[str]:
    with postgresql_socket(durable=True) as socket:
        yield f"postgres://{USER}@/postgres?host={quote(socket, safe='')}"


@contextmanager
def mariadb() -> Iterator[str]:
    with mariadb_socket(durable=True) as socket:
        yield f"mysql://root@/test?unix_socket={quote(socket, safe='')}&charset=utf8mb4"


@contextmanager
def sqlite() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="delayedq-") as directory:
        yield f"sqlite:///{directory}/desk.sqlite3"


#: What names the process that answers: its number, or the file that has it.
SERVER_IS = {"postgresql": "SELECT pg_backend_pid()", "mysql": "SELECT @@pid_file"}
SERVERS = {"postgresql": postgresql, "mariadb": mariadb, "sqlite": sqlite}


def say(text: str) -> None:
    print(text, flush=True)  # noqa: T201


def inside(count: int, rounds: int) -> None:
    import django

    django.setup()
    from django.core.management import call_command
    from django.db import connection
    from django.test import override_settings

    call_command("migrate", verbosity=0)
    with override_settings(ROOT_URLCONF="tests.desk.urls", ALLOWED_HOSTS=["*"]):
        boss = fill(count)
        with connection.cursor() as cursor:
            tables = ["delayedq_desk_item", "delayedq_message"]
            verb = {"postgresql": "VACUUM ANALYZE {}", "mysql": "ANALYZE TABLE {}"}.get(connection.vendor, "ANALYZE {}")
            for table in tables:
                cursor.execute(verb.format(table))
        for name, act in acts(boss).items():
            act()  # what is compiled and cached once
            before = processor()
            clock = median(timed(act) for _ in range(rounds))
            used = (processor() - before) / rounds
            say(f"{name:45} {1_000 * clock:6.0f} ms {1_000 * used:6.0f} ms of processor")


def processor() -> float:
    """Seconds that this process and the database have used until now; SQLite's are those of this process."""
    from django.db import connection

    used = time.process_time()
    if asked := SERVER_IS.get(connection.vendor):
        with connection.cursor() as cursor:
            cursor.execute(asked)
            (server,) = cursor.fetchone()
        number = server if isinstance(server, int) else Path(server).read_text().strip()
        fields = Path(f"/proc/{number}/stat").read_text().rpartition(") ")[2].split()
        used += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return used


def timed(act: Callable[[], object]) -> float:
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


def fill(count: int) -> Any:
    """As many open items, their messages, and as many decided items; returns a superuser, who holds some."""
    from tests.desk.given import person

    people = [person(f"p{number}", "view", "take", superuser=not number) for number in range(PEOPLE)]
    from delayedq.store import default_store

    now = default_store().now()
    for begin in range(0, count, CHUNK):
        numbers = range(begin, min(begin + CHUNK, count))
        add_open(numbers, people, now)
        add_decided(numbers, people, now)
    return people[0]


def add_open(numbers: range, people: list[Any], now: datetime) -> None:
    from delayedq.desk.models import Item
    from delayedq.models import Message
    from tests.desk.given import refund

    due, kind = now + timedelta(days=1), refund.module_path
    Message.objects.bulk_create(
        Message(
            id=number + 1, queue=QUEUES[number % 3], kind=kind, payload='{"args":[1]}', scheduled_at=due,
            scheduled_at_initially=now, created_at=now, max_attempts=1,
        )
        for number in numbers
    )  # fmt: skip
    Item.objects.bulk_create(
        Item(
            message_id=number + 1, queue=QUEUES[number % 3], kind=kind, mode="people", priority=number % 5,
            opened_at=now - timedelta(minutes=number % 20_000), due_at=now + timedelta(minutes=number % 9_000 - 300),
            **held(STATES[number % 10], number, people, now),
        )
        for number in numbers
    )  # fmt: skip


def held(state: str, number: int, people: list[Any], now: datetime) -> dict[str, Any]:
    ends = now + timedelta(hours=-1 if number % 100 == 1 else 4, seconds=number % 3_600)
    return {
        "state": state,
        "holder": people[number // 10 % PEOPLE] if state == "assigned" else None,
        "assigned_at": now if state == "assigned" else None,
        "until": ends if state in {"assigned", "postponed"} else None,
    }


def add_decided(numbers: range, people: list[Any], now: datetime) -> None:
    from delayedq.desk.models import Item
    from tests.desk.given import refund

    moments = {number: now - timedelta(days=90 * (number * 7_919 % 100_000) / 100_000, seconds=1) for number in numbers}
    Item.objects.bulk_create(
        Item(
            message_id=-1 - number, queue=QUEUES[number % 3], kind=refund.module_path, mode="shadow", state="done",
            is_open=False, opened_at=moments[number] - timedelta(hours=1), decided_at=moments[number],
            closed_at=moments[number], decided_by=people[number % PEOPLE], seconds=60.0, agreed=bool(number % 20),
            key=f"case/{number % 1_000}", decision='{"amount":1,"paid":true}', is_automated=number % 3 == 0,
        )
        for number in numbers
    )  # fmt: skip


def acts(boss: Any) -> dict[str, Callable[[], object]]:
    from django.test import Client

    from delayedq import desk
    from delayedq.desk.open_items import page

    client, queue = Client(), QUEUES[0]
    client.force_login(boss)

    def get(path: str) -> Callable[[], object]:
        return lambda: client.get(path).status_code == 200 or sys.exit(f"{path} is no page")

    rows = desk.items(queue).open()
    middle = page(rows, "", 2_000).after
    item = rows.filter(state="waiting").first()
    assert item is not None
    team = f"/desk/team/?queue={queue}"
    return {
        "my desk": get("/desk/"),
        "team desk, all queues": get("/desk/team/"),
        "team desk, one queue": get(team),
        "team desk, one queue, a page in its middle": get(f"{team}&after={middle}"),
        **{f"team desk, {only}": get(f"/desk/team/?only={only}") for only in FILTERS},
        "one item": get(f"/desk/{item.pk}/"),
        "review": get("/desk/review/"),
        "figures": get("/desk/figures/"),
        "automation": get("/desk/automation/"),
        "take the next one": lambda: client.post("/desk/next/", {"queue": queue}),
        "deal 50": lambda: client.post("/desk/team/deal/", {"queue": queue, "deal": "round_robin"}),
        "the list of items in the admin": get("/admin/delayedq_desk/item/"),
    }


FILTERS = ("unassigned", "assigned", "postponed", "in_review", "late")

if __name__ == "__main__":
    main()
