"""`@desk_task`: a task whose messages people decide, or a handler, or first the one and then the other."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from functools import wraps
from typing import TYPE_CHECKING, Any, ClassVar

from django.apps import apps

from delayedq.compat import (
    DEFAULT_TASK_BACKEND_ALIAS,
    DEFAULT_TASK_PRIORITY,
    DEFAULT_TASK_QUEUE_NAME,
    InvalidTask,
)
from delayedq.desk.options import Desk, Mode
from delayedq.tasks import Task, current_attempt

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True, kw_only=True)
class DeskTask[**P, R](Task[P, R]):
    """A task with a desk. Made by `@desk_task`."""

    #: In these its item is opened, or looked after, and the handler is not called: see `visits`.
    spare_attempts: ClassVar[int] = 8
    desk: Desk = field(kw_only=True)


_OF_DESK = set(Desk.__dataclass_fields__) - {"handler"}


def desk_task(**options: Any) -> Callable[[Callable[..., Any]], DeskTask[..., Any]]:
    """Decorator that makes a task of a module-level function, whose messages people decide, or the function itself.

    Takes the options of `Desk` and those of `@task`, but exactly_once. The function is the handler: it returns the
    result (or a `Proposal`), or raises NeedsPerson. In the mode "people" it is never called.
    Raises InvalidTask for a wrong option, or if `delayedq.desk` is not in INSTALLED_APPS.

        @desk_task(queue_name="refunds", form=RefundForm, review=Share(0.2), due_in=timedelta(hours=8))
        def refund(order_id: int) -> dict[str, Any]: ...

        refund.schedule_at(when, order.pk, key=f"refund/{order.pk}")
    """
    own = {name: options.pop(name) for name in list(options) if name in _OF_DESK}

    def make(handler: Callable[..., Any]) -> DeskTask[..., Any]:
        if inspect.iscoroutinefunction(handler) or options.get("exactly_once") or options.get("takes_context"):
            raise InvalidTask(f"{handler.__name__}: a desk task is a sync function, without exactly_once or context.")
        if apps.apps_ready and not apps.is_installed("delayedq.desk"):
            raise InvalidTask(f"{handler.__name__} needs tables of the desk: add 'delayedq.desk' to INSTALLED_APPS.")
        try:
            desk = Desk(handler=handler, **(own | ({"mode": Mode(own["mode"])} if "mode" in own else {})))
        except (TypeError, ValueError) as error:
            raise InvalidTask(f"{handler.__name__}: {error}.") from None
        given = {
            "priority": DEFAULT_TASK_PRIORITY,
            "queue_name": DEFAULT_TASK_QUEUE_NAME,
            "backend": DEFAULT_TASK_BACKEND_ALIAS,
            **options,
        }
        return DeskTask(func=_visited(desk), desk=desk, **given)

    return make


def _visited(desk: Desk) -> Callable[..., Any]:
    """What workers call. Outside of a worker it is the handler itself."""

    @wraps(desk.handler)
    def visited(*args: Any, **kwargs: Any) -> Any:
        attempt = current_attempt.get()
        if attempt is None or attempt.task.func is not visited:
            return desk.handler(*args, **kwargs)
        from delayedq.desk.visits import visit

        return visit(attempt, desk, args, kwargs)

    return visited
