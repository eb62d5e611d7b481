"""The tables of the desk: its items, how each queue and task is run now, who knows what, and what was said."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ClassVar, Self

from django.conf import settings
from django.core.exceptions import SuspiciousFileOperation
from django.db import models
from django.db.models import Q
from django.utils.text import get_valid_filename
from django.utils.translation import gettext_lazy as _

from delayedq.core.bounds import KEY_LENGTH, NAME_LENGTH
from delayedq.desk.options import Mode
from delayedq.models.message import Now

if TYPE_CHECKING:
    from datetime import timedelta

    from django.contrib.auth.base_user import AbstractBaseUser

    from delayedq.desk import verbs


class State(models.TextChoices):
    WAITING = "waiting", _("waiting")
    ASSIGNED = "assigned", _("assigned")
    POSTPONED = "postponed", _("postponed")
    REVIEW = "review", _("pending review")
    REJECTED = "rejected", _("rejected back")
    DONE = "done", _("done")
    WITHDRAWN = "withdrawn", _("withdrawn")


#: States in which a person holds the item, until `until`.
HELD = (State.ASSIGNED, State.REJECTED)
#: States that end at `until`: anybody may take the item then, and the next round of a worker lets it wait again.
ENDING = (*HELD, State.POSTPONED)
CLOSED = (State.DONE, State.WITHDRAWN)
#: The generation of an item that no worker has opened yet.
UNOPENED = -1
#: Their words are those of the page of automation.
MODES = [(mode.value, _(mode.value)) for mode in Mode]
#: What comes first: see `ItemQuerySet.in_order`.
ORDER = ("-priority", "due_or_last", "id")
#: Where items without a due date are in the order: databases disagree on where NULL sorts, and indexes follow that.
LAST = datetime(9999, 1, 1, tzinfo=UTC)


class DueOrLast(models.DateTimeField):  # type: ignore[type-arg]  # Django does not know arguments
    """`due_at`, or LAST without one: what items are ordered by. It is set whenever a row is saved."""

    def pre_save(self, model_instance: models.Model, add: bool) -> datetime:  # noqa: ARG002
        value: datetime = getattr(model_instance, "due_at") or LAST  # noqa: B009 - models in general have none
        setattr(model_instance, self.attname, value)
        return value


def give_back(collector: Any, field: Any, items: Any, using: str) -> None:
    """What a user who is deleted holds waits for anybody, in the transaction that deletes them."""
    state = field.model._meta.get_field("state")  # noqa: SLF001 - Django's documented API
    # In this order: the first statement locks them, and what is given to the user after it keeps the user.
    collector.add_field_update(field, None, items)
    rows = field.model._base_manager.using(using)  # noqa: SLF001
    collector.add_field_update(state, State.WAITING, rows.filter(holder=None, state__in=HELD))


give_back.lazy_sub_objs = True  # type: ignore[attr-defined]  # as of Django's SET_NULL: no row is read


def is_unassigned(now: Now | datetime) -> Q:
    """Items that somebody may take: those that wait, and those whose holder or postponement has run out."""
    return Q(state=State.WAITING) | Q(state__in=ENDING, until__lte=now)


class ItemQuerySet(models.QuerySet["Item"]):
    """Items by state, judged by the database's clock: `items("refunds").unassigned().count()`."""

    def open(self) -> Self:
        """Those that are not decided."""
        return self.filter(is_open__in=(True,))  # Django writes `is_open=True` so that SQLite takes no index for it

    def closed(self) -> Self:
        """Those that are decided or withdrawn."""
        return self.filter(is_open__in=(False,))

    def ever_opened(self) -> Self:
        """Without planted cases that no worker has opened: they would show as such."""
        return self.filter(generation__gt=UNOPENED)

    def unassigned(self) -> Self:
        """Those that somebody may take, in the order in which they are given out: see `in_order`."""
        return self.open().filter(is_unassigned(Now())).in_order()

    def assigned(self, user: AbstractBaseUser | None = None) -> Self:
        """Those that somebody (None: anybody) holds."""
        held = self.filter(state__in=HELD, until__gt=Now())
        return held if user is None else held.filter(holder=user)

    def postponed(self) -> Self:
        """Those that nobody may take before their follow-up date."""
        return self.filter(state=State.POSTPONED, until__gt=Now())

    def in_review(self) -> Self:
        """Those that are decided, and pending review."""
        return self.filter(state=State.REVIEW).in_order()

    def late(self) -> Self:
        """Those that are open and were due."""
        return self.open().filter(due_or_last__lte=Now())  # as `due_at`, in the order of an index

    def done(self) -> Self:
        """Those that are decided."""
        return self.filter(state=State.DONE)

    def in_order(self) -> Self:
        """By priority (higher first), due date (those without one last) and age."""
        return self.order_by(*ORDER)

    def for_skills_of(self, user: Any) -> Self:
        """Those that need no skill, or one that the user has."""
        return self.filter(Q(skill="") | Q(skill__in=known_to(user).values("name")))


class Item(models.Model):
    """One message that a person decides, or has decided, or a handler has. The message is live as long as it is open.

    It has the verbs of `delayedq.desk.verbs`: each changes it only as it is in the table now.
    """

    message_id = models.BigIntegerField(
        _("message"), unique=True, help_text=_("The same in the history, when it is done.")
    )
    generation = models.IntegerField(_("generation"), default=0, help_text=_("That of the message which was shown."))
    digest = models.CharField(max_length=32, null=True, help_text="Of the arguments which were shown; empty: unknown.")
    queue = models.CharField(_("queue"), max_length=NAME_LENGTH)
    kind = models.CharField(_("task"), max_length=NAME_LENGTH)
    key = models.CharField(_("key"), max_length=KEY_LENGTH, null=True, blank=True)
    priority = models.SmallIntegerField(_("priority"), default=0)
    skill = models.CharField(_("skill"), max_length=NAME_LENGTH, blank=True)
    weight = models.PositiveSmallIntegerField(_("weight"), default=1)

    state = models.CharField(_("state"), max_length=10, choices=State, default=State.WAITING)
    is_open = models.BooleanField(_("open"), default=True)
    holder = models.ForeignKey(
        settings.AUTH_USER_MODEL, give_back, null=True, blank=True, related_name="+", verbose_name=_("holder")
    )
    assigned_at = models.DateTimeField(_("assigned"), null=True, blank=True)
    until = models.DateTimeField(
        _("until"), null=True, blank=True, help_text=_("When the assignment or the postponement ends.")
    )
    assignment = models.IntegerField(
        _("changes of hands"), default=0, help_text=_("Counts changes of hands: it fences what a page may do.")
    )
    reason = models.TextField(blank=True, help_text="Why a person is needed: what the handler has said.")
    why = models.TextField(
        blank=True, default="", db_default="", help_text="Why it was postponed or sent back, the last time."
    )
    opened_at = models.DateTimeField(_("opened"))
    replaced_at = models.DateTimeField(
        _("opened anew"), null=True, blank=True, help_text=_("When it was opened anew: its message changed.")
    )
    due_at = models.DateTimeField(_("due"), null=True, blank=True)
    due_or_last = DueOrLast(default=LAST, editable=False)
    is_clock_paused = models.BooleanField(
        _("clock paused"), default=False, help_text=_("Its due time has moved on by its postponement.")
    )
    warned_at = models.DateTimeField(_("warned"), null=True, blank=True)
    escalated_at = models.DateTimeField(_("escalated"), null=True, blank=True)
    escalated_from = models.CharField(
        _("escalated from"),
        max_length=NAME_LENGTH,
        null=True,
        blank=True,
        help_text=_("The queue of its message, which has stayed there."),
    )

    mode = models.CharField(_("mode"), max_length=10, choices=MODES)
    is_blind = models.BooleanField(
        _("decided blind"), default=False, help_text=_("Who decides does not see what the handler has decided.")
    )
    proposal = models.TextField(null=True, blank=True, help_text="JSON: the decision of the handler.")
    confidence = models.FloatField(_("confidence"), null=True, blank=True)
    truth = models.TextField(null=True, blank=True, help_text="JSON: the right answer, where it was known before.")
    decision = models.TextField(null=True, blank=True, help_text="JSON: what became the result of the message.")
    decided_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.SET_NULL, null=True, blank=True, related_name="+", verbose_name=_("decided by")
    )
    decided_at = models.DateTimeField(_("decided"), null=True, blank=True)
    seconds = models.FloatField(
        _("seconds"), null=True, blank=True, help_text=_("From the assignment to the decision.")
    )
    agreed = models.BooleanField(
        _("agreed"), null=True, help_text=_("Whether person and handler decided alike; empty: not measured.")
    )
    is_automated = models.BooleanField(_("automated"), default=False, help_text=_("The handler alone has decided."))
    reviewed_by = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        models.SET_NULL,
        null=True,
        blank=True,
        related_name="+",
        verbose_name=_("reviewed by"),
    )
    rejections = models.PositiveSmallIntegerField(
        _("sent back"), default=0, help_text=_("How often a review has sent it back.")
    )
    closed_at = models.DateTimeField(_("closed"), null=True, blank=True)

    objects = ItemQuerySet.as_manager()

    class Meta:
        verbose_name = _("desk item")
        verbose_name_plural = _("desk items")
        default_permissions = ("view",)
        permissions: ClassVar = [
            ("take_item", "Can take and decide desk items"),
            ("assign_item", "Can assign desk items to others"),
            ("review_item", "Can review decisions"),
        ]
        indexes: ClassVar = [  # each serves what is named beside it: see tests/desk/test_scale.py
            models.Index(fields=["is_open", "queue", *ORDER], name="delayedq_desk_open"),  # team desk, its queues
            models.Index(fields=["queue", "state", "skill", *ORDER], name="delayedq_desk_next"),  # take_next
            models.Index(fields=["state", "queue", *ORDER], name="delayedq_desk_list"),  # what waits, or is in review
            models.Index(
                fields=["queue", "state", "until", "id"], name="delayedq_desk_ending"
            ),  # what ends, or waits again
            models.Index(fields=["is_open", "queue", "opened_at", "state"], name="delayedq_desk_since"),  # the oldest
            models.Index(
                fields=["holder", "state", "until", "queue", "opened_at"], name="delayedq_desk_held"
            ),  # who holds what
            models.Index(fields=["decided_at"], name="delayedq_desk_decided"),  # figures
            models.Index(fields=["kind", "agreed", "decided_at"], name="delayedq_desk_agreed"),  # the brake
            models.Index(fields=["kind", "key"], name="delayedq_desk_key"),
            models.Index(fields=["is_open", "closed_at", "id"], name="delayedq_desk_closed"),  # what workers sweep
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.key or self.message_id}"

    def held_by(self, now: datetime) -> Any:
        """The id of the user who holds it at this moment; None: nobody does."""
        return self.holder_id if self.state in HELD and self.until is not None and self.until > now else None

    def clock_left(self, now: datetime) -> timedelta | None:
        """How much time is left of a clock that is paused at this moment; None: it runs, or there is none."""
        is_paused = self.is_clock_paused and self.state == State.POSTPONED
        if not is_paused or self.due_at is None or self.until is None or self.until <= now:
            return None
        return self.due_at - self.until

    if TYPE_CHECKING:  # it is given them when the app is loaded, as they know items, and items nothing of them
        take, assign, unassign, renew = verbs.take, verbs.assign, verbs.unassign, verbs.renew
        postpone, finish, approve, send_back = verbs.postpone, verbs.finish, verbs.approve, verbs.send_back
        report, comment = verbs.report, verbs.comment


class DeskQueue(models.Model):
    """How a queue is worked on; without a row everybody with the permission may take as much as they like."""

    queue = models.CharField(_("queue"), max_length=NAME_LENGTH, unique=True)
    groups = models.ManyToManyField(
        "auth.Group", blank=True, help_text=_("Who works on it. None: everybody who may."), verbose_name=_("groups")
    )
    capacity = models.PositiveIntegerField(
        _("capacity"), null=True, blank=True, help_text=_("The weight that one may hold at a time.")
    )
    escalate_to = models.CharField(
        _("escalate to"), max_length=NAME_LENGTH, blank=True, help_text=_("Where what is late goes.")
    )

    class Meta:
        verbose_name = _("desk queue")
        verbose_name_plural = _("desk queues")

    def __str__(self) -> str:
        return self.queue


class Automation(models.Model):
    """Who decides the messages of a task now; without a row, what its code says."""

    kind = models.CharField(_("task"), max_length=NAME_LENGTH, unique=True, help_text=_("The path of the task."))
    mode = models.CharField(_("mode"), max_length=10, choices=MODES)

    class Meta:
        verbose_name = _("automation")
        verbose_name_plural = _("automation")

    def __str__(self) -> str:
        return f"{self.kind}: {self.mode}"


class Skill(models.Model):
    """What a user knows, maybe for a time."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="+", verbose_name=_("user"))
    name = models.CharField(_("skill"), max_length=NAME_LENGTH)
    until = models.DateTimeField(_("until"), null=True, blank=True, help_text=_("When it is dropped; empty: never."))

    class Meta:
        verbose_name = _("skill")
        verbose_name_plural = _("skills")
        constraints: ClassVar = [models.UniqueConstraint(fields=["user", "name"], name="delayedq_desk_one_skill")]

    def __str__(self) -> str:
        return f"{self.user}: {self.name}"


class ReplyTemplate(models.Model):
    """A text that whoever decides an item of a task may put into a field of its form."""

    kind = models.CharField(_("task"), max_length=NAME_LENGTH, help_text=_("The path of the task."))
    field = models.CharField(_("field"), max_length=NAME_LENGTH, help_text=_("The name of a text field of its form."))
    name = models.CharField(_("name"), max_length=NAME_LENGTH)
    text = models.TextField(_("text"))

    class Meta:
        verbose_name = _("reply template")
        verbose_name_plural = _("reply templates")
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["kind", "field", "name"], name="delayedq_desk_one_template")
        ]

    def __str__(self) -> str:
        return self.name


class SavedView(models.Model):
    """The filters of the team desk that a user has kept by a name."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="+")
    name = models.CharField(max_length=NAME_LENGTH)
    queue = models.CharField(max_length=NAME_LENGTH, blank=True)
    only = models.CharField(max_length=10, blank=True, help_text="One of the states that the team desk filters by.")
    text = models.CharField(max_length=KEY_LENGTH, blank=True, help_text="What is searched for.")

    class Meta:
        default_permissions = ()
        constraints: ClassVar = [models.UniqueConstraint(fields=["user", "name"], name="delayedq_desk_one_view")]

    def __str__(self) -> str:
        return self.name


class Presence(models.Model):
    """Who had the page of an item open, since when, and at which moment last."""

    # No constraint: it would wait for whoever decides the item, whose project may take its time in that transaction.
    item = models.ForeignKey(Item, models.CASCADE, related_name="+", db_constraint=False)
    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="+")
    since = models.DateTimeField()
    at = models.DateTimeField()

    class Meta:
        default_permissions = ()
        constraints: ClassVar = [models.UniqueConstraint(fields=["item", "user"], name="delayedq_desk_one_presence")]

    def __str__(self) -> str:
        return f"{self.user}: {self.item}"


#: How many bytes of the name of a file are kept: with its folders it fits into its column, and into a file system.
FILE_NAME_LENGTH = 70


def stored_name(comment: Comment, name: str) -> str:  # noqa: ARG001 - what Django gives
    """Where an attached file is stored: at a name that nobody guesses, as some sites serve their media to anybody.

    Of a long name the end is kept. One of which nothing can be stored (signs alone, say) is `file`.
    """
    try:
        kept = get_valid_filename(name).encode()[-FILE_NAME_LENGTH:].decode(errors="ignore")
    except SuspiciousFileOperation:
        kept = "file"
    return f"desk/{secrets.token_urlsafe(16)}/{kept}"


class Comment(models.Model):
    """What somebody has said of an item, with a file in the project's storage."""

    item = models.ForeignKey(Item, models.CASCADE, related_name="comments")
    by = models.ForeignKey(settings.AUTH_USER_MODEL, models.SET_NULL, null=True, related_name="+")
    at = models.DateTimeField()
    text = models.TextField(blank=True)
    attachment = models.FileField(upload_to=stored_name, blank=True)

    class Meta:
        default_permissions = ()

    def __str__(self) -> str:
        return self.text[:80]


class ItemChange(models.Model):
    """What was done with an item: by whom, when, and who held it then. It is deleted with the item."""

    item = models.ForeignKey(Item, models.CASCADE, related_name="changes")
    at = models.DateTimeField()
    verb = models.CharField(max_length=10, help_text="As `item_changed` says it.")
    by = models.ForeignKey(settings.AUTH_USER_MODEL, models.SET_NULL, null=True, related_name="+")
    is_by_code = models.BooleanField(default=False, help_text="No user did it, also none who was deleted since.")
    holder = models.ForeignKey(settings.AUTH_USER_MODEL, models.SET_NULL, null=True, related_name="+")
    until = models.DateTimeField(null=True, help_text="Of a postponement.")
    is_clock_paused = models.BooleanField(default=False, help_text="Of a postponement: its due time moved with it.")
    why = models.TextField(blank=True, default="")

    class Meta:
        default_permissions = ()

    def __str__(self) -> str:
        return f"{self.verb} {self.at:%Y-%m-%d %H:%M:%S%z}"


def known_to(user: Any, using: str | None = None) -> models.QuerySet[Skill]:
    """What the user knows at this moment."""
    return Skill.objects.using(using).filter(user=user).filter(Q(until=None) | Q(until__gt=Now()))
