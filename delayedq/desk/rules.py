"""Who may do what with an item. Each function raises NotAllowed, and changes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.db.models import Q, Sum
from django.utils.translation import gettext as _

from delayedq.desk.errors import NotAllowed
from delayedq.desk.models import DeskQueue, Item, Skill
from delayedq.models.message import Now

if TYPE_CHECKING:
    from django.db.models import QuerySet


def may(user: Any, verb: str, queue: str, using: str | None = None) -> bool:
    """Whether the user has the permission for this verb (view, take, assign, review), and is of the queue's groups."""
    if not (user.is_active and user.has_perm(f"delayedq_desk.{verb}_item")):
        return False
    if user.is_superuser:
        return True
    groups = list(_of(DeskQueue, using).filter(queue=queue, groups__isnull=False).values_list("groups", flat=True))
    return not groups or user.groups.filter(pk__in=groups).exists()


def visible(user: Any) -> QuerySet[Item]:
    """The items that the user may see: those of queues without groups, and of queues of their groups."""
    if not (user.is_active and user.has_perm("delayedq_desk.view_item")):
        return Item.objects.none()
    if user.is_superuser:
        return Item.objects.all()
    closed = DeskQueue.objects.filter(groups__isnull=False).exclude(groups__in=user.groups.all()).values("queue")
    own = DeskQueue.objects.filter(groups__in=user.groups.all()).values("queue")
    return Item.objects.filter(~Q(queue__in=closed) | Q(queue__in=own))


def demand(user: Any, verb: str, item: Item) -> None:
    if not may(user, verb, item.queue, item._state.db):  # noqa: SLF001 - Django's documented API
        texts = {
            "take": _("%(user)s may not work on the queue %(queue)s."),
            "assign": _("%(user)s may not assign items of the queue %(queue)s."),
            "review": _("%(user)s may not review decisions of the queue %(queue)s."),
        }
        raise NotAllowed(texts[verb] % {"user": user, "queue": item.queue})


def demand_fit(user: Any, item: Item) -> None:
    """The user may work on it, has its skill, and does not hold too much."""
    demand(user, "take", item)
    using = item._state.db  # noqa: SLF001
    if item.skill:
        known = _of(Skill, using).filter(user=user, name=item.skill)
        if not known.filter(Q(until=None) | Q(until__gt=Now())).exists():
            raise NotAllowed(_("%(user)s lacks the skill %(skill)s.") % {"user": user, "skill": item.skill})
    queue = _of(DeskQueue, using).filter(queue=item.queue, capacity__isnull=False).first()
    if queue is not None and load(user, item.queue, using) + item.weight > (queue.capacity or 0):
        raise NotAllowed(
            _("%(user)s holds as much of the queue %(queue)s as one may: %(capacity)s.")
            % {"user": user, "queue": item.queue, "capacity": queue.capacity}
        )


def load(user: Any, queue: str, using: str | None = None) -> int:
    """The weight of what the user holds of the queue."""
    held = Item.objects.using(using).assigned(user).filter(queue=queue)
    return held.aggregate(total=Sum("weight"))["total"] or 0


def _of(model: Any, using: str | None) -> Any:
    return model.objects.using(using)
