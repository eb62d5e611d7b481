"""The steps of an attempt: what is recorded is not done again, and each is recorded in the transaction of its writes.

The form is a call, `message.step("charge", charge, order)`, since Python can't skip the body of a `with` block.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager, nullcontext
from contextvars import ContextVar
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from asgiref.sync import sync_to_async

from delayedq import clock
from delayedq.conf import get_settings
from delayedq.core.serialization import dumps, loads
from delayedq.exceptions import LeaseLost, PayloadTooLarge, Snooze
from delayedq.steps.rules import SLEEP, StepNames, check_name
from delayedq.steps.store import read_steps, record_step
from delayedq.store import served_store
from delayedq.worker.exactly_once import refuse_own_end, watched_transaction

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from datetime import datetime, timedelta

    from delayedq.store.protocol import Claimed
    from delayedq.tasks import Task

#: The step that runs in this context; "": none.
_running: ContextVar[str] = ContextVar("delayedq_step", default="")


class Records(Protocol):
    """Where the results of steps are kept, as JSON by the names of the steps."""

    def read(self) -> dict[str, str]: ...

    def transaction(self) -> AbstractContextManager[object]:
        """That of one step, which ends with `write`."""
        ...

    def write(self, name: str, result: str) -> None: ...

    def now(self) -> datetime: ...


class StoredRecords:
    """In the database of the queue. Each verb may raise django.db.Error; `write` raises LeaseLost.

    asking: entered around what is asked outside the transaction of a step, and around its begin and end.
    """

    def __init__(self, claimed: Claimed, asking: AbstractContextManager[None]) -> None:
        self._claimed = claimed
        self._asking = asking
        self._store = served_store()

    def read(self) -> dict[str, str]:
        with self._asking:
            return read_steps(self._store, self._claimed)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        alias = self._store.alias
        try:
            with ExitStack() as stack:
                try:
                    stack.enter_context(watched_transaction(self._asking, alias, durable=True))
                except RuntimeError as error:
                    raise RuntimeError(
                        f"A step commits its own transaction on {alias!r}, so it can't be called within another one: "
                        "open transaction.atomic() in the function of the step."
                    ) from error
                yield
        except LeaseLost:
            with self._asking:
                refuse_own_end(self._claimed, alias)
            raise

    def write(self, name: str, result: str) -> None:
        record_step(self._store, self._claimed, name, result)  # it may wait for another transaction

    def now(self) -> datetime:
        with self._asking:
            return self._store.now()


class RecordsInMemory:
    """For tests without a database: no transaction, no lease."""

    def __init__(self) -> None:
        self._results: dict[str, str] = {}

    def read(self) -> dict[str, str]:
        return dict(self._results)

    def transaction(self) -> AbstractContextManager[object]:
        return nullcontext()

    def write(self, name: str, result: str) -> None:
        self._results[name] = result

    def now(self) -> datetime:
        return clock.now()


class StepCall(NamedTuple):
    """What a step calls."""

    name: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @property
    def is_async(self) -> bool:
        return iscoroutinefunction(self.function)

    def __call__(self) -> Any:
        return self.function(*self.args, **self.kwargs)


def call_of(name: str | Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> StepCall:
    """What `step(name, function, *args)` or `step(function, *args)` shall call. Raises TypeError or ValueError."""
    if callable(name):
        return StepCall(check_name(getattr(name, "__name__", None)), name, args, kwargs)
    name = check_name(name)
    if not args or not callable(args[0]):
        raise TypeError(
            f'step({name!r}) needs the function to call: step({name!r}, function, *args). A "with" block would not be '
            "a step, since Python can't skip its body."
        )
    return StepCall(name, args[0], args[1:], kwargs)


class Steps:
    """The steps of one attempt."""

    def __init__(self, task: Task[..., Any], records: Records) -> None:
        if task.exactly_once:
            raise RuntimeError(f"{task.name} is exactly_once: all that it does commits together, so it has no steps.")
        self._task = task
        self._records = records
        self._names = StepNames()
        self._known: dict[str, str] | None = None

    def run(self, call: StepCall) -> Any:
        """The result of a step: the recorded one, or that of the call, which is then recorded."""
        if call.is_async:
            raise TypeError(f"The function of step {call.name!r} is async: use `await current_message().astep(...)`.")
        return self._done(self._next(call.name), call)

    async def arun(self, call: StepCall) -> Any:
        """The same for async tasks. A sync function is called in a thread, in the transaction of its record."""
        name = self._next(call.name)
        if not call.is_async:
            return await sync_to_async(self._done)(name, call)
        known = await sync_to_async(self._read)()
        if name not in known:
            with _within(name):
                text = text_of(await call(), name)
            await sync_to_async(self._write)(name, text)
        return await sync_to_async(loads)(known[name])

    def sleep(self, wake_at: Callable[[], datetime]) -> None:
        """Raise Snooze until the moment that is recorded; return if that is over."""
        name = self._next(SLEEP)
        if name not in self._read():
            self._write(name, text_of(wake_at(), name))
        until = loads(self._read()[name])
        if self._records.now() < until:
            raise Snooze(until=until)

    def sleep_for(self, delay: timedelta) -> None:
        Snooze(delay)  # which refuses what is no delay
        self.sleep(lambda: self._records.now() + delay)

    def sleep_until(self, when: datetime) -> None:
        Snooze(until=when)
        self.sleep(lambda: when)

    def _next(self, name: str) -> str:
        if _running.get():
            raise RuntimeError(f"Step {name!r} can't be within step {_running.get()!r}: call one after the other.")
        declared = self._task.steps
        if declared is not None and name not in declared and name != SLEEP:
            raise ValueError(f"{self._task.name} has no step {name!r}: its steps are {', '.join(sorted(declared))}.")
        return self._names.next(name)

    def _read(self) -> dict[str, str]:
        if self._known is None:
            self._known = self._records.read()
        return self._known

    def _done(self, name: str, call: StepCall) -> Any:
        known = self._read()
        if name not in known:
            with self._records.transaction(), _within(name):
                text = text_of(call(), name)
                self._records.write(name, text)
            known[name] = text
        return loads(known[name])

    def _write(self, name: str, text: str) -> None:
        with self._records.transaction():
            self._records.write(name, text)
        self._read()[name] = text


@contextmanager
def _within(name: str) -> Iterator[None]:
    before = _running.set(name)
    try:
        yield
    finally:
        _running.reset(before)


def text_of(value: object, name: str) -> str:
    """The result of a step as it is stored. Raises NotStorable or PayloadTooLarge."""
    text, limit = dumps(value, where=f"the result of step {name!r}"), get_settings().MAX_PAYLOAD_BYTES
    if len(text) > limit:
        raise PayloadTooLarge(
            f"The result of step {name!r} takes {len(text):,} bytes; DELAYEDQ['MAX_PAYLOAD_BYTES'] allows {limit:,}. "
            "Store it elsewhere, and return a reference to it."
        )
    return text
