"""Code of a project that is right. The types of what it gets are asserted."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, assert_type

from delayedq import Call, DelayedQueue, Limit, Task, chain, current_message, group, task
from delayedq.models import Message
from delayedq.tasks.scheduling import Scheduled

if TYPE_CHECKING:
    from django.tasks import TaskResult

WHEN = datetime(2126, 3, 8, tzinfo=UTC)


@task
def remind(flight_id: int, gate: str | None = None) -> str:
    current_message().progress(1, 2, "half")
    return f"{flight_id} {gate}"


@task(queue_name="mail", max_attempts=3, timeout=timedelta(minutes=2), limit=Limit(concurrency=2), channel="to")
async def greet(to: str, *, urgent: bool = False) -> None:
    pass


assert_type(remind(7, "B7"), str)
assert_type(remind.schedule_at(WHEN, 7), Scheduled)
assert_type(remind.schedule_at(WHEN, 7, gate="B7", key="UA1545"), Scheduled)
assert_type(remind.schedule_in(timedelta(minutes=5), flight_id=7, key="UA1545", on_conflict="keep"), Scheduled)
assert_type(remind.enqueue_many([((7,), {"gate": "B7"}), Call((8,), at=WHEN, key="UA1545")]), list[Scheduled])
assert_type(remind.enqueue_bulk(Call((number,)) for number in range(3)), int)
assert_type(remind.unschedule(key="UA1545"), bool)
remind.using(priority=10, run_after=WHEN, metadata={"batch": 7}, channel="acme").enqueue(7)
chain(remind.s(7), greet.s(urgent=True)).enqueue()
group(remind.s(number) for number in range(3)).then(greet.s("all")).enqueue()


def view() -> TaskResult[[int, str | None], str] | None:
    result = remind.enqueue(7, gate="B7")
    assert_type(result.return_value, str)
    return None


async def aview() -> None:
    assert_type(await remind.aschedule_at(WHEN, 7, key="UA1545"), Scheduled)
    assert_type(await remind.aunschedule(key="UA1545"), bool)
    await greet.aenqueue("Ada", urgent=True)


def queues(orders: DelayedQueue[dict[str, int]]) -> None:
    orders.offer_or_update("1", {"size": 3}, WHEN, on_conflict="earliest")
    if (message := orders.try_poll()) is not None:
        assert_type(message.payload, dict[str, int])


def rows() -> None:
    found = Message.objects.due()  # pyright: ignore[reportAttributeAccessIssue]  # mypy has a plugin for Django
    found.called_with(remind, flight_id=7).filter(metadata__batch=7).update(priority=3)
    assert_type(Message.objects.get().attempts, int)


def takes_any(one: Task[..., object]) -> None:
    one.enqueue(1, 2, 3)
