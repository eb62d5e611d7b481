"""Tags for the templates of the desk: links, times, states, tasks and shares."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from django import template
from django.utils import timezone
from django.utils.html import format_html
from django.utils.http import urlencode
from django.utils.translation import gettext as _

from delayedq.desk.frames import link
from delayedq.desk.models import State
from delayedq.desk.options import Mode
from delayedq.operations.wording import exact, relative, span

if TYPE_CHECKING:
    from datetime import datetime

    from django.utils.safestring import SafeString

    from delayedq.desk.models import Item

register = template.Library()

#: The pill of each state: its shape and colour are those of states of messages.
LOOKS = {
    State.WAITING: "scheduled",
    State.ASSIGNED: "running",
    State.POSTPONED: "paused",
    State.REVIEW: "retrying",
    State.REJECTED: "lost",
    State.DONE: "succeeded",
    State.WITHDRAWN: "cancelled",
}


@register.filter
def decider(item: Item) -> str:
    """Who has decided it; "somebody": code has, or a person who was deleted since."""
    if item.decided_by is not None:
        return str(item.decided_by)
    return _("the handler") if _is_of_handler(item) else _("somebody")


def _is_of_handler(item: Item) -> bool:
    """Whether the decision is the handler's, alone or before a review. A person may decide alike, which takes time."""
    before_review = item.mode == Mode.REVIEWED and not item.is_blind and item.seconds is None
    is_alike = item.decision is not None and item.decision == item.proposal
    return item.is_automated or (before_review and is_alike)


@register.simple_tag(takes_context=True)
def desk_url(context: dict[str, Any], name: str, *args: Any) -> str:
    """The path of a page of the desk, where this one is mounted."""
    return link(context["request"], name, *args)


@register.simple_tag(takes_context=True)
def team_url(context: dict[str, Any], **asked: str) -> str:
    """The path of the team desk with what is asked of it; an empty text asks nothing."""
    query = urlencode({name: value for name, value in asked.items() if value})
    return f"{link(context['request'], 'team')}?{query}"


@register.filter
def tick(item: Item) -> str:
    """What a tick says: the item, and its assignment as the page shows it."""
    return f"{item.pk}.{item.assignment}"


@register.simple_tag(takes_context=True, name="when")
def when_(context: dict[str, Any], moment: datetime | None) -> SafeString | str:
    """A time: how far away it is from the `now` of the page, and beside it date, time and zone; "-" for None."""
    if moment is None:
        return "-"
    now = context.get("now") or timezone.now()
    return format_html(
        '<time datetime="{}"><b>{}</b> <span class="dq-exact">{}</span></time>',
        moment.isoformat(), relative(moment, now), exact(moment),
    )  # fmt: skip


@register.simple_tag(takes_context=True)
def ago(context: dict[str, Any], moment: datetime | None) -> SafeString | str:
    """A time in a list: how far away it is; the exact one is its tooltip."""
    if moment is None:
        return "-"
    now = context.get("now") or timezone.now()
    marked = '<time datetime="{}" title="{}">{}</time>'
    return format_html(marked, moment.isoformat(), exact(moment), relative(moment, now))


@register.filter
def pill(state: str) -> SafeString:
    """A state as a word with a shape and a colour."""
    known = State(state)
    return format_html('<span class="dq-pill dq-pill-{}">{}</span>', LOOKS[known], known.label)


@register.simple_tag
def late() -> SafeString:
    return format_html('<span class="dq-pill dq-pill-failed">{}</span>', _("late"))


@register.simple_tag
def paused_clock(left: timedelta) -> SafeString:
    """A due time whose clock stands still: what is left of it."""
    text = _("%(time)s left") % {"time": span(left)}
    return format_html('<span class="dq-pill dq-pill-paused">{}</span> {}', _("clock paused"), text)


@register.filter
def short(kind: str) -> str:
    """The last part of the path of a task."""
    return kind.rpartition(".")[2]


@register.filter
def long(duration: timedelta | None) -> str:
    """A duration in words; "-" for None."""
    return "-" if duration is None else span(duration)


@register.filter
def percent(share: float | None) -> str:
    return "-" if share is None else f"{round(100 * share)} %"


@register.filter
def seconds(number: float | None) -> str:
    """A duration in seconds, in words."""
    return "-" if number is None else span(timedelta(seconds=number))


@register.filter
def basename(path: str) -> str:
    """The name of a file without its folders."""
    return path.rpartition("/")[2]
