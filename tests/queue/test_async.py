"""The async versions: the same, and no event loop waits for the database."""

from __future__ import annotations

import asyncio
import gc
from datetime import timedelta

import pytest
from asgiref.sync import async_to_sync
from django.db import connections

from delayedq import BatchedMessage
from tests.queue.given import Boom, boom
from tests.queue.test_waiting import listening
from tests.store.given import NOW
from tests.worker.attempts import PATIENCE


def run(function, *args):
    """In an event loop, whose database thread is the test's own."""
    try:
        return async_to_sync(function)(*args)
    finally:
        gc.collect()  # the thread of the loop ends with its executor, which the frames of an exception keep


def test_every_verb_has_its_async_version(queue, clock):
    async def use():
        assert await queue.aoffer_or_update("a", 1, NOW) == "created"
        assert await queue.aoffer_if_not_exists("a", 2, NOW) == "ignored"
        assert len(await queue.aoffer_batch([BatchedMessage(None, "b", 2, NOW)])) == 1
        assert await queue.acontains_message("a")
        assert (await queue.aread("b")).payload == 2
        async with await queue.atry_poll() as envelope:
            assert envelope.payload == 1
        batch = await queue.atry_poll_many(5)
        assert await batch.aacknowledge() == ["acknowledged"]
        assert await queue.acount() == 0
        assert not await queue.adrop_message("a")

    run(use)


def test_an_async_block_rejects_on_an_error(queue):
    queue.offer_or_update("a", 1, NOW)

    async def use():
        with pytest.raises(Boom):
            async with await queue.atry_poll():
                boom()
        return await queue.atry_poll()

    assert run(use).attempt == 2


def test_an_async_poll_leaves_the_loop_and_its_database_thread_free(make, settings):
    settings.DELAYEDQ = {"POLL_INTERVAL": timedelta(hours=1)}
    queue = make(clock=None)

    async def use():
        polling = asyncio.create_task(queue.apoll())
        await until_it_waits(queue)
        await queue.aoffer_or_update("a", 1)
        async with asyncio.timeout(PATIENCE):
            envelope = await polling
        return await envelope.aacknowledge()

    assert run(use) == "acknowledged"


async def until_it_waits(queue):
    async with asyncio.timeout(PATIENCE):
        while not listening(queue):  # noqa: ASYNC110 - it is another thread that begins to listen
            await asyncio.sleep(0.001)


def test_an_async_poll_that_is_cancelled_ends_at_once_and_holds_nothing(make, settings):
    settings.DELAYEDQ = {"POLL_INTERVAL": timedelta(hours=1)}
    queue = make(clock=None)

    async def use():
        polling = asyncio.create_task(queue.apoll())
        await until_it_waits(queue)
        polling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await polling
        await queue.aoffer_or_update("a", 1)
        return await queue.atry_poll()

    assert run(use).attempt == 1


def test_what_a_cancelled_poll_had_claimed_is_given_back_uncharged(make, monkeypatch):
    queue = make(clock=None)
    queue.offer_or_update("a", 1)
    poll = type(queue).try_poll

    async def use():
        loop = asyncio.get_running_loop()

        def claim_as_it_is_cancelled(self, **options):
            envelope = poll(self, **options)
            loop.call_soon_threadsafe(polling.cancel)
            asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result(PATIENCE)  # by then it is cancelled
            return envelope

        async def nothing(self, **options):
            return None

        monkeypatch.setattr(type(queue), "atry_poll", nothing)
        monkeypatch.setattr(type(queue), "try_poll", claim_as_it_is_cancelled)
        polling = asyncio.create_task(queue.apoll())
        with pytest.raises(asyncio.CancelledError):
            await polling

    run(use)
    monkeypatch.undo()
    assert queue.try_poll().attempt == 1


@pytest.mark.parametrize("verb", ["atry_poll", "atry_poll_many", "apoll"])
def test_a_call_cancelled_while_the_database_answers_keeps_no_lease(make, monkeypatch, verb):
    queue = make(clock=None)
    queue.offer_or_update("a", 1)
    claim = type(queue.leases).claim

    async def use():
        loop = asyncio.get_running_loop()

        def claim_and_be_cancelled(self, *args):
            claimed = claim(self, *args)
            loop.call_soon_threadsafe(polling.cancel)
            asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result(PATIENCE)  # by then it is cancelled
            return claimed

        monkeypatch.setattr(type(queue.leases), "claim", claim_and_be_cancelled)
        polling = asyncio.create_task(queue.atry_poll_many(5) if verb == "atry_poll_many" else getattr(queue, verb)())
        with pytest.raises(asyncio.CancelledError):
            await polling

    run(use)
    monkeypatch.undo()
    assert queue.try_poll().attempt == 1


def test_a_call_cancelled_as_the_queue_is_closed_raises_cancelled(make, settings, monkeypatch):
    settings.DELAYEDQ = {"POLL_INTERVAL": timedelta(hours=1)}
    queue = make(clock=None)
    monkeypatch.setattr(type(queue), "_give_up", lambda self, given_up: self.close())

    async def use():
        polling = asyncio.create_task(queue.apoll())
        await until_it_waits(queue)
        polling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await polling

    run(use)


def test_an_async_iteration_consumes_until_the_queue_is_closed(make):
    queue = make(clock=None)
    queue.offer_batch([BatchedMessage(None, f"{number}", number) for number in range(3)])

    async def use():
        taken = []
        async for envelope in queue:
            async with envelope:
                taken.append(envelope.payload)
            if len(taken) == 3:
                queue.close()
        return taken

    assert run(use) == [0, 1, 2]


def test_an_async_poll_leaves_no_connection_behind(make, alias, monkeypatch):
    queue = make(clock=None)
    queue.count()
    opened = []
    wrapper = type(connections[alias])
    connect = wrapper.connect
    monkeypatch.setattr(wrapper, "connect", lambda self: opened.append(self) or connect(self))

    assert run(queue.apoll, timedelta(seconds=0.01)) is None
    assert opened
    assert [one for one in opened if one.connection is not None] == []
