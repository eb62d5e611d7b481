"""The options of a task, with what each of them means. `delayedq.tasks.Task` adds the verbs."""

from __future__ import annotations

from dataclasses import MISSING, dataclass, field, fields, make_dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

from django.utils.module_loading import import_string

from delayedq.compat import DEFAULT_TASK_BACKEND_ALIAS, DEFAULT_TASK_PRIORITY, DEFAULT_TASK_QUEUE_NAME
from delayedq.compat import Task as DjangoTask
from delayedq.core.other_names import PARTS, VERBS, NoOperators, no_attribute
from delayedq.core.signatures import parameter_names
from delayedq.flows.step_results import dump_step

if TYPE_CHECKING:
    from collections.abc import Mapping

# A call of a task that is not enqueued yet: a part of a flow.


#: What stands in a payload for the result of a step, which is known when its flow is stored: `flows.step_results`.
_REFERENCE = '"$":"step"'


class WrittenCall(NamedTuple):
    """A call whose payload is written already."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    payload: str


@dataclass(frozen=True, slots=True)
class Signature(NoOperators):
    """A task with arguments, made by `Task.s` and `Task.si`.

    payload: as `dump_step` wrote the arguments; None if they refer to results. takes_result: in a chain, the result of
    what comes before it is put in front of `args`.
    """

    task: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    payload: str | None
    takes_result: bool = True

    if not TYPE_CHECKING:  # to a type checker, it would make all of them attributes

        def __getattr__(self, name: str) -> Any:
            """Names what does here what a verb of another framework does there."""
            raise no_attribute(self, name, PARTS)

    @classmethod
    def of(cls, task: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, takes_result: bool = True) -> Self:
        """Raises NotStorable for arguments that can't be stored."""
        payload = dump_step(args, kwargs, parameter_names(task.func, task.takes_context))
        return cls(task, args, kwargs, None if _REFERENCE in payload else payload, takes_result)

    def call(self, incoming: Any) -> WrittenCall | tuple[tuple[Any, ...], Mapping[str, Any]]:
        """What is called if `incoming` stands for the result of what comes before; None: nothing does."""
        if incoming is not None and self.takes_result:
            return (incoming, *self.args), self.kwargs
        return (self.args, self.kwargs) if self.payload is None else WrittenCall(self.args, self.kwargs, self.payload)


# Base


if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from datetime import datetime, timedelta

    from delayedq.core.backoff import Backoff
    from delayedq.core.errors import ErrorChoice
    from delayedq.limits.declared import ChannelOption
    from delayedq.limits.rules import Limit

    AnyTask = DjangoTask[..., Any]
else:
    #: The fields of a `django.tasks.Task` that `BaseTask` declares again, with defaults of its own: those of Django 6.0
    #: have none, those of 6.1 do.
    KNOWN = {"func", "priority", "backend", "queue_name", "run_after", "takes_context"}

    def with_later_fields(framework: type) -> type:
        """Return the Task class of a version of Django to derive from: a field that it adds and needs is None."""
        needed = [
            each.name
            for each in fields(framework)
            if each.init and each.name not in KNOWN and each.default is each.default_factory is MISSING
        ]
        if not needed:
            return framework
        later = [(name, Any, field(default=None)) for name in needed]
        return make_dataclass("Task", later, bases=(framework,), frozen=True, slots=True, kw_only=True)

    AnyTask = with_later_fields(DjangoTask)


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseTask(AnyTask):
    """A `django.tasks.Task` with the options of delayedq.

    max_attempts: number of attempts (int, 1 to 32,000) after which the message fails and becomes a dead letter.
    backoff: delay before the next attempt: a timedelta; a list of them, of which the last one is repeated; or a
        callable that takes the number of the failed attempt (1 for the first) and returns a timedelta; see
        `delayedq.core.backoff`.
    retry_on, give_up_on: errors that another attempt may follow, and errors after which the message fails at once: an
        exception class, several of them, or a function that takes the error and returns a bool. None: all errors may be
        followed by another attempt. `give_up_on` goes before `retry_on`. Neither applies to `Retry` and `Fail`.
    timeout: longest duration of one attempt (timedelta); after it, TaskTimeout is raised in the attempt.
    deadline: longest time (timedelta) from when the message was first due to its end, attempts and pauses together;
        after it, DeadlineExceeded is raised in the running attempt, and no other attempt follows.
    expires: a message that did not start within this time (timedelta) after it was due ends as expired. This applies to
        the first attempt only, and not to a message that has recorded a step: see `deadline`.
    result_retention: the return value is removed this long (timedelta) after the message has ended; its history stays.
        None: it is kept as long as the history.
    on_success, on_failure, on_retry: a task that is enqueued in the transaction that ends the message as succeeded,
        ends it as failed, or gives it back for another attempt. Its only argument is the id of that message (a str),
        which its backend's `get_result` takes.
    interruptible: if the message is cancelled while a sync task runs, TaskCancelled is raised in its thread, as soon as
        the worker knows it, between two Python instructions. False: the task continues, and may check
        `current_message().cancelled`. Async tasks are always cancelled.
    metadata: JSON that is stored with the message; `current_message().metadata` returns it.
    exactly_once: run the task in a transaction on the queue's database that also ends its message: what the task writes
        there and the end of the message are committed together, or neither is. A task that raises, or that lost its
        lease, has written nothing. Writes to other databases, from other threads, and to other services are outside of
        this transaction; `transaction.on_commit` callbacks run as usual. Sync functions only. Keep them short: their
        locks are held until the end, and on SQLite that is a lock on the whole file.
    sensitive: names of arguments that are masked wherever they would be shown or logged ("return": the result); True:
        all arguments and the result. Django's `sensitive_variables` on the function adds its names. See
        `delayedq.masking`.
    steps: the names of the steps that the function may call, without their numbers; it may call no others. Then
        `manage.py delayedq check-pending` can tell whether this version knows the recorded steps of waiting messages.
        None: any steps.

    channel, limit: see `delayedq.limits.declared`.
    aliases: paths that the task had before it was moved or renamed: messages that were stored under one of them run.
        Keys are unique per stored path, so a new message does not replace one of an old path.

    If an option in DEFAULTED is None, the backend's OPTIONS apply, first those of its queue (without OPTIONS: 8
    attempts, an exponential backoff from 5 s to 1 h, and nothing else). A message stores its max_attempts, and what
    `using()` changes; all other options are those in the worker's code.
    """

    #: How many attempts more a message has once its worker has vanished in the last one, before it is a dead letter:
    #: for a task that then does what is left to do, and calls nothing again that may have killed the worker.
    spare_attempts: ClassVar[int] = 0

    func: Callable[..., Any]
    priority: int = DEFAULT_TASK_PRIORITY
    backend: str = DEFAULT_TASK_BACKEND_ALIAS
    queue_name: str = DEFAULT_TASK_QUEUE_NAME
    run_after: datetime | None = None
    takes_context: bool = False

    max_attempts: int = None  # type: ignore[assignment]  # that of the backend
    backoff: Backoff | timedelta | Sequence[timedelta] = None  # type: ignore[assignment]  # likewise
    retry_on: ErrorChoice | None = None
    give_up_on: ErrorChoice | None = None
    timeout: timedelta | None = None
    deadline: timedelta | None = None
    expires: timedelta | None = None
    result_retention: timedelta | None = None
    on_success: BaseTask | None = None
    on_failure: BaseTask | None = None
    on_retry: BaseTask | None = None
    metadata: Mapping[str, Any] | None = None
    exactly_once: bool = False
    interruptible: bool = False
    sensitive: bool | Collection[str] = False
    steps: Collection[str] | None = None
    channel: ChannelOption = None
    limit: Limit | Sequence[Limit] | None = None
    channel_name: str | None = None
    aliases: Collection[str] = ()

    @classmethod
    def _reconstruct(cls, values: dict[str, Any]) -> BaseTask:
        path = values["func"]
        try:
            function = import_string(path).func
        except (ImportError, AttributeError) as error:
            raise ValueError(f"Expected {path!r} to point to a Task instance.") from error
        return cls(**values | {"func": function})

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle it by the path of its function, whose name the Task has. Django does so since 6.1."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return self._reconstruct, (values | {"func": self.module_path},)

    if not TYPE_CHECKING:  # to a type checker, it would make all of them attributes

        def __getattr__(self, name: str) -> Any:
            """Names what does here what a verb of another framework does there."""
            raise no_attribute(self, name, VERBS)

    def s(self, *args: Any, **kwargs: Any) -> Signature:
        """Return a call of the task for a flow. In a chain, the result of the previous step is its first argument.

        Raises NotStorable, naming the argument, if one can't be stored.

            chain(fetch.s(url), resize.s(width=200)).enqueue()
        """
        return Signature.of(self, args, kwargs)

    def si(self, *args: Any, **kwargs: Any) -> Signature:
        """Return a call that gets only these arguments, and no result (an immutable signature)."""
        return Signature.of(self, args, kwargs, takes_result=False)


#: Options that a backend may have defaults for.
DEFAULTED = (
    *("max_attempts", "backoff", "retry_on", "give_up_on", "timeout", "deadline", "expires"),
    "result_retention",
)
