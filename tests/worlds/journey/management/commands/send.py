"""Enqueue messages of all kinds, in transactions and out of them, and note what must become of each.

Workers run meanwhile. When nothing is left but what is due tomorrow, the pages of the admin are read.
"""

from contextlib import contextmanager, suppress
from datetime import timedelta
from itertools import count
from logging import CRITICAL, getLogger
from time import monotonic, sleep

from django.conf import settings
from django.core.management import call_command
from django.core.management.base import BaseCommand
from django.db import transaction
from django.test import Client
from django.utils import timezone
from journey import tasks
from journey.expectations import expect
from journey.models import Effect, Sent

from delayedq import Call, chain, group
from delayedq.models import Message

TOMORROW = timedelta(days=1)
MINUTE = timedelta(minutes=1)
#: From `count()`: each message has a number of its own.
NUMBERS = count(1)


class RolledBackError(Exception):
    """Rolls a transaction back."""


@contextmanager
def rolled_back():
    """A transaction, or a savepoint in one."""
    with suppress(RolledBackError), transaction.atomic():
        yield
        raise RolledBackError


def note(task, number, **expected):
    Sent.objects.create(number=number, kind=task.name, **expected)
    return number


def numbers(how_many):
    return [next(NUMBERS) for _ in range(how_many)]


class Command(BaseCommand):
    def handle(self, **options):
        results = [*self.out_of_transactions(), *self.in_transactions()]
        self.keyed()
        flows = self.flows()
        self.requests()
        for one in (*results, *flows):
            one.wait(MINUTE)
        self.wait_for_the_rest()
        call_command("visit", stdout=self.stdout)
        expect([flow.state for flow in flows], ["succeeded"] * len(flows), of="flows are")

    def out_of_transactions(self):
        """One by one, many at once, and one that waits for its result."""
        for task, expected in (
            (tasks.plain, {}),
            (tasks.retried, {"attempts": 3}),
            (tasks.once, {"attempts": 2}),
            (tasks.waiting, {"effects": 2}),
            (tasks.failing, {"effects": 0, "outcome": "failed"}),
        ):
            many = [note(task, number, **expected) for number in numbers(6)]
            yield task.enqueue(many.pop())
            task.enqueue_many([((number,), {}) for number in many])
        limited = [((note(tasks.limited, number), f"town {number % tasks.TOWNS}"), {}) for number in numbers(18)]
        tasks.limited.enqueue_many(limited)
        number = note(tasks.plain, next(NUMBERS))
        result = tasks.plain.enqueue(number)
        result.wait(MINUTE)
        expect(result.return_value, number, of="the result is")

    def in_transactions(self):
        """What commits runs; what rolls back, whole or to a savepoint, has never been."""
        with transaction.atomic():
            number = next(NUMBERS)
            yield tasks.plain.enqueue(number)
            with rolled_back():
                tasks.plain.enqueue_many([((number,), {}) for number in numbers(3)])
        note(tasks.plain, number)
        with rolled_back():
            for task in (tasks.plain, tasks.retried, tasks.once, tasks.waiting):
                task.enqueue(next(NUMBERS))
            tasks.moved.schedule_in(TOMORROW, next(NUMBERS), "nowhere", key="rolled back")

    def keyed(self):
        """Due tomorrow; then moved to now, cancelled, or left there for the pages to show."""
        now, later = timezone.now(), timezone.now() + TOMORROW
        first, *others = [note(tasks.moved, number) for number in numbers(4)]
        tasks.moved.schedule_at(later, first, "where it was", key="Ærø")
        moved = tasks.moved.schedule_at(now, first, "where it was moved to", key="Ærø")
        expect(moved.outcome, "updated", of="moving is")
        calls = [Call((number, "where it was"), at=later, key=f"{number}") for number in others]
        tasks.moved.enqueue_many(calls)
        with transaction.atomic():
            for number in others:
                tasks.moved.schedule_in(timedelta(), number, "where it was moved to", key=f"{number}")
        cancelled, kept = numbers(2)
        note(tasks.moved, cancelled, outcome="cancelled", effects=0, attempts=0)
        note(tasks.moved, kept, outcome="", effects=0, attempts=0)
        for number, key in ((cancelled, "cancelled"), (kept, "kept")):
            tasks.moved.schedule_at(later, number, "where it stays", key=key)
        expect(tasks.moved.unschedule(key="cancelled"), True, of="unscheduling returned")

    def flows(self):
        one, two, three, *each = [note(tasks.step, number) for number in numbers(7)]
        with transaction.atomic():
            first = chain(tasks.step.s(one), tasks.step.si(two)).enqueue()
        return [first, group(tasks.step.s(number) for number in each).then(tasks.step.si(three)).enqueue(name="all")]

    def requests(self):
        """A request that fails takes its message with it, if it was a transaction."""
        getLogger("django.request").setLevel(CRITICAL)
        site = Client(raise_request_exception=False, SERVER_NAME="localhost")
        sent, failed = numbers(2)
        codes = site.get(f"/send/{sent}/").status_code, site.get(f"/send/{failed}/?fail=1").status_code
        expect(codes, (200, 500), of="the views answered")
        note(tasks.plain, sent)
        if not settings.DATABASES["default"].get("ATOMIC_REQUESTS"):
            note(tasks.plain, failed)

    def wait_for_the_rest(self):
        """Until a tick has run, and only ticks and what was kept for tomorrow are live."""
        until = monotonic() + MINUTE.total_seconds()
        live = Message.objects.exclude(kind=tasks.tick.module_path).exclude(key="kept")
        while not Effect.objects.filter(number=0).exists() and monotonic() < until:
            sleep(0.05)
        while left := list(live.values_list("kind", "payload", "attempt", "errors")):
            if monotonic() > until:
                expect(left, [], of="a minute later there are")
            sleep(0.05)
