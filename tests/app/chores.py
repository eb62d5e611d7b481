"""Tasks for the tests of whole workers: what they did is in the table of marks."""

import asyncio
import ctypes
import multiprocessing
import os
import resource
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

from asgiref.sync import sync_to_async
from django.db import connection

from delayedq import Cancel, Retry, Snooze, current_message, task
from tests.app.models import Mark

QUICK = timedelta(milliseconds=10)
#: Seconds for which a task waits at most for what it waits for.
PATIENCE = 20


@task
def note(name, value=""):
    Mark.objects.create(name=name, value=value)


@task
def mark_in_threads(name, threads):
    """Each thread has a connection of its own."""

    def mark(number):
        try:
            note.func(f"{name} {number}")
        finally:
            connection.close()

    with ThreadPoolExecutor(threads) as running:
        list(running.map(mark, range(threads)))


@task
def nothing(number=0):
    pass


@task
def nap(name, seconds):
    Mark.objects.create(name=f"{name} began", value=str(os.getpid()))
    time.sleep(seconds)
    Mark.objects.create(name=f"{name} ended", value=str(os.getpid()))


@task
def log_in_file(path, seconds):
    """Does not write to the database, so no lock can stop it."""
    with Path(path).open("a") as log:
        print("began", os.getpid(), file=log, flush=True)
        time.sleep(seconds)
        print("ended", os.getpid(), file=log, flush=True)


@task
def freeze_its_process():
    """By then the worker has handed out all that it claimed together with this."""
    time.sleep(0.2)
    os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(0.2)  # other threads may take the signal first


@task
def wait_for(name):
    """Runs until that mark is made."""
    Mark.objects.create(name=f"began to wait for {name}")
    _wait(lambda: Mark.objects.filter(name=name).exists())


@task(max_attempts=3)
def die(code=9):
    Mark.objects.create(name="died")
    os._exit(code)


@task(max_attempts=3, backoff=QUICK)
def stumble(times):
    """Fails this many times, then succeeds."""
    if current_message().attempt <= times:
        raise ValueError("not yet")
    return current_message().attempt


@task(backoff=timedelta(hours=1))
def fail_and_wait():
    raise ValueError("not now")


@task(max_attempts=3, backoff=timedelta(hours=1))
def ask_again():
    if current_message().attempt < 3:
        raise Retry("later", delay=QUICK)


@task(max_attempts=1)
def snooze_thrice():
    Mark.objects.create(name="snoozed")
    if Mark.objects.filter(name="snoozed").count() < 4:
        raise Snooze(QUICK)


@task
def cancel_itself():
    raise Cancel("no longer needed")


@task
def report(name, times):
    """Reports its progress every 0.1 s."""
    for done in range(times):
        current_message().progress(done, times)
        time.sleep(0.1)
    Mark.objects.create(name=name)


@task
async def note_async(name):
    await Mark.objects.acreate(name=name, value=str(current_message().attempt))


@task(exactly_once=True, max_attempts=1)
def write_and_fail(path):
    """Waits in between until this file exists."""
    Mark.objects.create(name="never there")
    Path(f"{path}.began").touch()
    _wait(Path(path).exists)
    raise ValueError("so what it wrote is rolled back")


@task(timeout=timedelta(milliseconds=100), max_attempts=1)
def spin():
    while True:
        pass


def _wait_for_database():
    """A statement that is answered after a minute: nothing in Python can interrupt the wait for it."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT SLEEP(60)" if connection.vendor == "mysql" else "SELECT pg_sleep(60)")


@task(timeout=timedelta(milliseconds=300), max_attempts=1)
def ask():
    _wait_for_database()


@task(timeout=timedelta(milliseconds=300), max_attempts=1, exactly_once=True)
def ask_exactly_once():
    _wait_for_database()


@task(timeout=timedelta(milliseconds=300), max_attempts=1)
async def ask_async():
    await sync_to_async(_wait_for_database)()


@task
async def wait_async():
    await sync_to_async(_wait_for_database)()


@task(max_attempts=2, backoff=QUICK)
def watch_lease(name):
    """Runs until it is told that its lease was lost."""
    Mark.objects.create(name=f"{name} began")
    _wait(lambda: current_message().lease_lost)
    Mark.objects.create(name=f"{name} lost" if current_message().lease_lost else f"{name} kept")


@task
def note_tick():
    message = current_message()
    Mark.objects.create(name=message.nominal_at.isoformat(), value=message.schedule)


def _wait(condition):
    deadline = time.monotonic() + PATIENCE
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)


@task(timeout=timedelta(seconds=1), max_attempts=3)
def hold_interpreter(seconds=100_000):
    """A call into C that does not let go of the GIL: nothing in the process can end it."""
    Mark.objects.create(name="holds", value=str(os.getpid()))
    ctypes.PyDLL(None).sleep(seconds)


@task(timeout=timedelta(seconds=1), max_attempts=3)
def hold_thread(seconds=100_000):
    """A call into C that can't be interrupted, but lets other threads run."""
    Mark.objects.create(name="thread held", value=str(os.getpid()))
    time.sleep(seconds)


@task
def leave_child(seconds=60):
    """Forks a child that outlives the task and keeps every descriptor open."""
    if os.fork() == 0:
        time.sleep(seconds)
        os._exit(0)
    Mark.objects.create(name="left a child")


@task
def leave_process(seconds=60):
    """Starts a process that Python would wait for at its end."""
    multiprocessing.get_context("fork").Process(target=time.sleep, args=(seconds,)).start()
    Mark.objects.create(name="left a process")


@task
def return_twice(name, *, error=None):
    """Forks, and returns (or raises) in the parent and in the child."""
    Mark.objects.create(name=name)
    os.fork()
    if error:
        raise SystemExit(error)


@task
async def fork_in_the_loop():
    """Returns only where it was not forked: the child gives way to others before that."""
    os.fork()
    await asyncio.sleep(0)


@task
async def fork_in_the_orm():
    """The same in the thread of the ORM, which the child has alone."""
    await Mark.objects.acreate(name="forks")
    await sync_to_async(os.fork)()


def _log(path, what):
    with Path(path).open("a") as log:
        print(what, file=log, flush=True)


@task
async def log_turns(path, turns):
    """Gives way to others, and says so, without a library: the process of each turn."""
    for _ in range(turns):
        await asyncio.sleep(0)
        _log(path, os.getpid())


@task
def end_thread(name):
    """As code does that raises in all threads of its process."""
    thread = next(one for one in threading.enumerate() if one.name == name)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(SystemExit))


_kept = []


@task(max_attempts=1)
def leak_files():
    """Until there are no more, as a library does that closes nothing."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    while True:
        _kept.append(os.open(os.devnull, os.O_RDONLY))


@task(max_attempts=1)
def leak_memory():
    """Until there is hardly more, in a process whose memory is limited: what takes little goes on."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + 50_000_000
    resource.setrlimit(resource.RLIMIT_AS, (most, resource.getrlimit(resource.RLIMIT_AS)[1]))
    while True:
        _kept.append(bytearray(8_000_000))


@task(max_attempts=20, backoff=timedelta(seconds=1))
def need_much():
    """Opens a file, and takes some memory."""
    _ = bytearray(16_000_000), Path(os.devnull).read_bytes()


@task(max_attempts=1)
def fail_loudly(number):
    raise ValueError("x" * 1_000)
