"""Who may do what with an item. Each function raises NotAllowed, and changes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib.auth import get_user_model
from django.db import connections
from django.db.models import Sum
from django.utils.translation import gettext as _

from delayedq.desk.errors import NotAllowed
from delayedq.desk.models import DeskQueue, Item, known_to

if TYPE_CHECKING:
    from django.db.models import QuerySet

    from delayedq.desk.models import ItemQuerySet


def may(user: Any, verb: str, queue: str, using: str | None = None) -> bool:
    """Whether the user has the permission for this verb (view, take, assign, review), and is of the queue's groups."""
    if not (user.is_active and user.has_perm(f"delayedq_desk.{verb}_item")):
        return False
    if _may_all(user):
        return True
    groups = list(_of(DeskQueue, using).filter(queue=queue, groups__isnull=False).values_list("groups", flat=True))
    return not groups or (hasattr(user, "groups") and user.groups.filter(pk__in=groups).exists())


def visible(user: Any) -> ItemQuerySet:
    """The items that the user may see: those of queues without groups, and of queues of their groups."""
    if not (user.is_active and user.has_perm("delayedq_desk.view_item")):
        return Item.objects.none()
    if _may_all(user):
        return Item.objects.all()
    mine = user.groups.all() if hasattr(user, "groups") else []
    closed = list(
        DeskQueue.objects.filter(groups__isnull=False).exclude(groups__in=mine).values_list("queue", flat=True)
    )
    return Item.objects.exclude(queue__in=closed) if closed else Item.objects.all()


def active_users() -> QuerySet[Any]:
    """Who may sign in. A project's own users may have no column for that, and a manager of any name."""
    users = get_user_model()._default_manager.all()  # noqa: SLF001 - Django's documented API
    columns = {field.name for field in users.model._meta.get_fields()}  # noqa: SLF001
    return users.filter(is_active=True) if "is_active" in columns else users


def current(user: Any) -> Any:
    """The user as they are stored now: Django remembers the permissions of one who was asked before. Raises NotAllowed
    if they may not sign in any more.
    """
    found = active_users().filter(pk=user.pk).first()
    if found is None:
        raise NotAllowed(_("The user was deleted meanwhile."))
    return found


def _may_all(user: Any) -> bool:
    return getattr(user, "is_superuser", False)  # a project's own users may have no such thing, nor groups


def demand(user: Any, verb: str, item: Item) -> None:
    if not may(user, verb, item.queue, item._state.db):  # noqa: SLF001 - Django's documented API
        texts = {
            "view": _("%(user)s may not see items of the queue %(queue)s."),
            "take": _("%(user)s may not work on the queue %(queue)s."),
            "assign": _("%(user)s may not assign items of the queue %(queue)s."),
            "review": _("%(user)s may not review decisions of the queue %(queue)s."),
        }
        raise NotAllowed(texts[verb] % {"user": user, "queue": item.queue})


def demand_fit(user: Any, item: Item) -> None:
    """The user may work on it, has its skill, and does not hold too much."""
    demand(user, "take", item)
    using = item._state.db  # noqa: SLF001
    if item.skill and item.skill not in skills_of(user, using):
        raise NotAllowed(_("%(user)s lacks the skill %(skill)s.") % {"user": user, "skill": item.skill})
    room = room_of(user, item.queue, using, lock=True)
    if room is not None and item.weight > room:
        raise full(user, item.queue, using)


def full(user: Any, queue: str, using: str | None = None) -> NotAllowed:
    capacity = _capacity(queue, using)
    return NotAllowed(
        _("%(user)s holds as much of the queue %(queue)s as one may: %(capacity)s.")
        % {"user": user, "queue": queue, "capacity": capacity}
    )


def room_of(user: Any, queue: str, using: str | None = None, *, lock: bool = False) -> int | None:
    """The weight that the user may take of the queue; None: any.

    `lock`: until the end of the transaction nobody else gives the user an item, so that the answer stays true.
    """
    capacity = _capacity(queue, using)
    if capacity is None:
        return None
    if lock:
        rows = _of(get_user_model(), using).filter(pk=user.pk)
        no_key = connections[rows.db].features.has_select_for_no_key_update
        list(rows.order_by().select_for_update(no_key=no_key).values_list("pk"))
    return capacity - load(user, queue, using)


def skills_of(user: Any, using: str | None = None) -> list[str]:
    """What the user knows at this moment."""
    return sorted(known_to(user, using).values_list("name", flat=True))


def _capacity(queue: str, using: str | None) -> int | None:
    found: int | None = _of(DeskQueue, using).filter(queue=queue).values_list("capacity", flat=True).first()
    return found


def load(user: Any, queue: str, using: str | None = None) -> int:
    """The weight of what the user holds of the queue."""
    held = Item.objects.using(using).assigned(user).filter(queue=queue)
    return held.aggregate(total=Sum("weight"))["total"] or 0


def _of(model: Any, using: str | None) -> Any:
    return model._default_manager.using(using)  # noqa: SLF001 - Django's documented API
