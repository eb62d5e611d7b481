"""Code of a project that is wrong, each line in one way: see the package."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from delayedq import BatchedMessage, Call, DelayedQueue, Limit, Rate, task

WHEN = datetime(2126, 3, 8, tzinfo=UTC)


@task
def remind(flight_id: int, gate: str | None = None) -> str:
    return f"{flight_id} {gate}"


orders: DelayedQueue[dict[str, int]] = DelayedQueue("orders")

# Arguments that do not fit the function
remind()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
remind("7")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
remind.enqueue()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
remind.enqueue("7")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
remind.enqueue(7, gate=7)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
remind.enqueue(7, gat="B7")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
remind.schedule_at(WHEN)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
remind.schedule_at(WHEN, "7")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
remind.schedule_in(timedelta(1), 7, gat="B7")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]

# What is meant for the queue
remind.enqueue(7, key="UA1545")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
remind.schedule_at("tomorrow", 7, key="UA1545")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
remind.schedule_at(WHEN, 7, key=1545)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
remind.schedule_at(WHEN, 7, key="UA1545", on_conflict="repalce")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
remind.schedule_in(5, 7)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
remind.unschedule("UA1545")  # type: ignore[call-arg, arg-type]  # pyright: ignore[reportCallIssue]
remind.using(priority="high")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
remind.using(retries=3)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
remind.using(run_after=60)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
remind.enqueue_many([7])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
remind.enqueue_many([Call(7)])  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
remind.enqueue_bulk([((7,), {})], 100)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]

# Verbs and options of other frameworks
remind.delay(7)  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
remind.apply_async((7,), countdown=5)  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
task(autoretry_for=(ValueError,))  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
task(timeout=60)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
task(limit=5)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]

# Limits and bare queues
Limit(concurrency="2")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
Rate(5, per=1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
orders.offer_or_update("1", "no dict")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
orders.offer_or_update("1", {"size": 3}, 60)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
orders.offer_or_update("1", {"size": 3}, on_conflict="repalce")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
orders.offer_or_update("1", {"size": 3}, prioriti=3)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
BatchedMessage(None, "1", {"size": 3}, on_conflict="repalce")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
orders.poll(timeout=5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def view() -> None:
    await remind.aenqueue("7")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await remind.aschedule_at(WHEN, "7")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    await remind.aunschedule("UA1545")  # type: ignore[call-arg, arg-type]  # pyright: ignore[reportCallIssue]
    _ = remind.enqueue(7).return_value.missing  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
