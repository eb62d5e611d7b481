"""The channels and the limits: what waits and runs in each, and pages that pause them and set their limits live."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlencode

from django import forms
from django.http import Http404, HttpResponseRedirect
from django.urls import path, reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from delayedq import limits
from delayedq.admin.ask import Ask, AskingAdmin, Reply
from delayedq.admin.base import may
from delayedq.admin.filters import ListFilter
from delayedq.admin.lists import LIMITS_AFTER, chips_of, paging
from delayedq.admin.moments import when
from delayedq.core.bounds import NAME_LENGTH, is_storable
from delayedq.cron.admin_form import Duration
from delayedq.exceptions import InvalidLimit, InvalidMessage
from delayedq.limits.operator import (
    MOST_COUNTED,
    page_of_channels,
    page_of_limits,
    scopes_now,
    terms_of,
)
from delayedq.limits.rules import Rate
from delayedq.operations.pauses import paused_now
from delayedq.operations.wording import grouped, visible

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from django.http import HttpRequest, HttpResponse
    from django.urls import URLPattern
    from django.utils.safestring import SafeString

    from delayedq.limits.operator import ListedChannel, ScopeNow
    from delayedq.limits.rules import Limit
    from delayedq.operations.pauses import Paused


class ChannelFilter(ListFilter):
    q = forms.CharField(label=gettext_lazy("Channel"), required=False, strip=False, max_length=NAME_LENGTH)
    queue = forms.CharField(label=gettext_lazy("Queue"), required=False, strip=False, max_length=NAME_LENGTH)
    kind = forms.CharField(label=gettext_lazy("Task"), required=False, strip=False, max_length=NAME_LENGTH)


class LimitForm(forms.Form):
    concurrency = forms.IntegerField(label=gettext_lazy("At once"), required=False, min_value=1)
    count = forms.IntegerField(label=gettext_lazy("Starts"), required=False, min_value=1)
    per = Duration(
        label=gettext_lazy("in each"), required=False, help_text=gettext_lazy("Seconds, or such as 1:30 or 1:00:00.")
    )
    burst = forms.IntegerField(
        label=gettext_lazy("Starts at once"), required=False, min_value=1, help_text=gettext_lazy("Empty: all of them.")
    )
    window = forms.BooleanField(label=gettext_lazy("In windows by the clock, not spread"), required=False)
    first_only = forms.BooleanField(label=gettext_lazy("Retries do not count"), required=False)
    size = forms.IntegerField(label=gettext_lazy("Messages, waiting and running"), required=False, min_value=1)
    weight = forms.FloatField(
        label=gettext_lazy("Weight"), required=False, help_text=gettext_lazy("2: twice the work of a channel with 1.")
    )
    share = forms.IntegerField(
        label=gettext_lazy("Share"),
        required=False,
        min_value=1,
        help_text=gettext_lazy("How many may run before other channels get more."),
    )

    def __init__(self, *given: Any, channel: str = "", **options: Any) -> None:
        super().__init__(*given, **options)
        if not channel:
            del self.fields["weight"], self.fields["share"]

    def field_of(self, error: str) -> str | None:
        """The field that an error is about: the first that it names; of a rate that is not whole, what it lacks."""
        given = self.cleaned_data
        if any(given[name] for name in ("count", "per", "burst")) and not (given["count"] and given["per"]):
            return "per" if given["count"] else "count"
        return next((name for name in self.fields if re.search(rf"\b{name}\b", error)), None)

    def terms(self) -> dict[str, Any]:
        """For `limits.set`. Raises InvalidLimit."""
        given = self.cleaned_data
        rate = None
        if given["count"] or given["per"] or given["burst"]:
            try:
                how = {"window": given["window"], "retries": not given["first_only"]}
                rate = Rate(given["count"], given["per"], given["burst"], **how)
            except ValueError as error:
                raise InvalidLimit(str(error)) from None
        changed = {*self.changed_data}
        turns = {name: given[name] for name in changed & {"weight", "share"} if given[name] is not None}
        if turns and not changed - {"weight", "share"}:
            return turns  # what each task says holds on for the rest
        return {"concurrency": given["concurrency"], "rate": rate, "size": given["size"], **turns}


class ChannelRow(NamedTuple):
    """A channel or a limit in its list. `state`: a pill, if it has one. `actions`: labels and addresses."""

    name: str
    queue: str
    kind: str
    state: str
    remark: str
    waiting: str
    running: str
    terms: str
    released: SafeString | str
    actions: list[tuple[str, str]]


class ChannelPages(AskingAdmin):
    """A part of the admin of queues."""

    def channel_urls(self) -> list[URLPattern]:
        views: dict[str, Callable[..., HttpResponse]] = {
            "channels": self.channels_view,
            "pause-channel": self.pause_channel_view,
            "resume-channel": self.resume_channel_view,
            "skip-head": self.skip_view,
            "limit": self.limit_view,
            "clear-limit": self.clear_limit_view,
        }
        return [
            path(f"{name}/", self.admin_site.admin_view(view), name=f"delayedq_pausedqueue_{name.replace('-', '_')}")
            for name, view in views.items()
        ]

    def channels_view(self, request: HttpRequest) -> HttpResponse:
        self.demand_view(request)
        now, asked, paused = self.store.now(), ChannelFilter(request.GET), paused_now(self.store)
        given = asked.cleaned_data if asked.is_valid() and all(map(is_storable, asked.cleaned_data.values())) else None
        found, name = None, (given or {}).get("q") or None
        if given is not None:
            named = {"queue": given["queue"], "kind": given["kind"], "name": name}
            found = page_of_channels(self.store, now, after=request.GET.get("after", ""), **named)
        place = request.GET.get(LIMITS_AFTER, "")
        shared, own = scopes_now(self.store, now), page_of_limits(self.store, now, name=name, after=place)
        context = {
            "now": now,
            "filter": asked,
            "is_wrong": given is None,
            "limits": [
                _limit_row(request, one, now, paused) for one in [*([] if place else shared.limits), *own.limits]
            ],
            "limit_pages": paging(request, own.following, place=LIMITS_AFTER),
            "are_limits_cut": shared.is_cut,
            "channels": [_channel_row(request, one, now, paused) for one in found.channels] if found else [],
            "chips": chips_of(asked, request.GET, ""),
            **paging(request, found.following if found else ""),
            "may_change": may(request, "pause_queue") or may(request, "set_limit"),
        }
        return self.page(request, "channels.html", _("Channels and limits"), context)

    # To pause

    def pause_channel_view(self, request: HttpRequest) -> HttpResponse:
        """Pause a limit or a channel."""
        scope, channel, name = self._named(request, "pause_queue")
        said = _("No more messages of %(name)s will start until it is resumed. Those that run will finish.")

        def do() -> Reply:
            did = limits.pause(scope, channel=channel, by=request.user.get_username(), store=self.store)
            return Reply((_("Paused: %s.") if did else _("Already paused: %s.")) % name, did)

        return self.ask(request, Ask(_("Pause"), _("Pause %s?") % name, said % {"name": name}, _list_url()), do)

    def resume_channel_view(self, request: HttpRequest) -> HttpResponse:
        """Resume a limit or a channel."""
        scope, channel, name = self._named(request, "pause_queue")
        said = _("Messages of %(name)s will start again, as far as its limit has room.") % {"name": name}

        def do() -> Reply:
            did = limits.resume(scope, channel=channel, store=self.store)
            return Reply((_("Resumed: %s.") if did else _("Not paused: %s.")) % name, did)

        return self.ask(request, Ask(_("Resume"), _("Resume %s?") % name, said, _list_url()), do)

    def skip_view(self, request: HttpRequest) -> HttpResponse:
        """Let the others start before the message that blocks the channel."""
        scope, channel, name = self._named(request, "pause_queue")
        said = _("The messages behind the one that blocks %(name)s may start before it. It keeps its time.")

        def do() -> Reply:
            did = limits.skip(scope, channel=channel, store=self.store)
            return Reply((_("Not blocked any more: %s.") if did else _("No message blocks %s.")) % name, did)

        return self.ask(
            request, Ask(_("Skip"), _("Skip the head of %s?") % name, said % {"name": name}, _list_url()), do
        )

    # To limit

    def limit_view(self, request: HttpRequest) -> HttpResponse:
        """GET: the limit that holds. POST: set another one."""
        scope, channel, name = self._named(request, "set_limit")
        initial = _initial(limits.holding(scope, channel, self.store), channel)
        form = LimitForm(request.POST or None, initial=initial, channel=channel)
        if request.method == "POST" and form.is_valid():
            try:
                limit = limits.set(scope, channel=channel, store=self.store, **form.terms())
            except (InvalidLimit, InvalidMessage) as error:
                form.add_error(form.field_of(str(error)), visible(str(error)))
            else:
                said = _("The limit of %(name)s is set: %(terms)s.") % {"name": name, "terms": terms_of(limit)}
                self.tell(request, Reply(said))
                return HttpResponseRedirect(_list_url())
        context = {"form": form, "said": _("It holds at once, also for what waits already.")}
        return self.page(request, "limit.html", _("Limit of %s") % name, context, back=_list_url())

    def clear_limit_view(self, request: HttpRequest) -> HttpResponse:
        """What the code says holds again."""
        scope, channel, name = self._named(request, "set_limit")
        said = _("What the code says of %(name)s will hold again.") % {"name": name}

        def do() -> Reply:
            before = limits.live(self.store).get((scope, channel))
            if not limits.clear(scope, channel=channel, store=self.store):
                return Reply(_("No limit of %s was set.") % name, did=False)
            given = {"name": name, "terms": terms_of(before) if before else ""}
            return Reply(_("The limit of %(name)s is cleared; it was: %(terms)s.") % given)

        return self.ask(request, Ask(_("Clear the limit"), _("Clear the limit of %s?") % name, said, _list_url()), do)

    # All of them

    def _named(self, request: HttpRequest, permission: str) -> tuple[str, str, str]:
        """Scope and channel that the address names, and both in words. Raises PermissionDenied, Http404."""
        self.demand(request, permission)
        scope, channel = request.GET.get("scope", ""), request.GET.get("channel", "")
        if not scope or not is_storable(scope + channel) or max(len(scope), len(channel)) > NAME_LENGTH:
            raise Http404("There is no such queue, task, limit or channel.")
        return scope, channel, name_of(scope, channel)


def _list_url() -> str:
    return reverse("admin:delayedq_pausedqueue_channels")


def name_of(scope: str, channel: str) -> str:
    """A limit in words: that of a queue, a task or several tasks, or of one channel."""
    if not channel:
        return visible(scope)
    return _("channel %(channel)s of %(scope)s") % {"channel": visible(channel), "scope": visible(scope)}


def _initial(limit: Limit, channel: str) -> dict[str, Any]:
    rate = limit.rate
    given: dict[str, Any] = {"concurrency": limit.concurrency or None, "size": limit.size, "share": limit.share}
    given["weight"] = limit.weight_of(channel)
    if rate is None:
        return given
    how = {"window": rate.window, "first_only": not rate.retries}
    return given | how | {"count": rate.count, "per": str(rate.per.total_seconds()), "burst": rate.burst}


def _limit_row(request: HttpRequest, one: ScopeNow, now: datetime, paused: Paused) -> ChannelRow:
    is_stopped = paused.has(one.scope, one.scope)
    paused_by = _("paused by %s") % visible(one.paused_by) if one.paused_by else ""
    return ChannelRow(
        name=name_of(one.scope, one.channel),
        queue="",
        kind="",
        state="paused" if is_stopped else _state(one.limit, one.running or 0, one.released_at),
        remark=paused_by
        or (_stopped(one.scope, paused) if is_stopped else "")
        or (_("set live") if one.is_live else ""),
        waiting="",
        running="-" if one.running is None else grouped(one.running),
        terms=terms_of(one.limit),
        released=when(one.released_at, now),
        actions=_actions(request, one.scope, one.channel, one.limit, is_live=one.is_live),
    )


def _channel_row(request: HttpRequest, one: ListedChannel, now: datetime, paused: Paused) -> ChannelRow:
    is_stopped = paused.has(one.queue, one.kind)
    state = "paused" if is_stopped else _state(one.limit, one.running, one.released_at)
    waiting = _("over %s") % grouped(MOST_COUNTED) if one.waiting > MOST_COUNTED else grouped(one.waiting)
    return ChannelRow(
        name=visible(one.name) or _("(no name)"),
        queue=visible(one.queue),
        kind=visible(one.kind),
        state="blocked" if one.blocked_by else state,
        remark=_("by message %s") % one.blocked_by
        if one.blocked_by
        else (_stopped(one.queue, paused) if is_stopped else ""),
        waiting=waiting,
        running=grouped(one.running),
        terms=terms_of(one.limit),
        released=when(one.blocked_until or one.released_at, now),
        actions=_actions(request, one.kind, one.name, one.limit, is_blocked=bool(one.blocked_by)) if one.name else [],
    )


def _stopped(queue: str, paused: Paused) -> str:
    """Why nothing starts, whatever the limit says."""
    return _("its queue is paused") if queue in paused.queues else _("its task is paused")


def _state(limit: Limit, running: int, released_at: datetime | None) -> str:
    if limit.is_paused:
        return "paused"
    is_full = limit.concurrency is not None and running >= limit.concurrency
    return "full" if is_full or released_at is not None else "has room"


def _actions(
    request: HttpRequest, scope: str, channel: str, limit: Limit, *, is_live: bool = False, is_blocked: bool = False
) -> list[tuple[str, str]]:
    query = urlencode({"scope": scope, "channel": channel})
    offered = [
        ("pause_queue", is_blocked, _("Skip"), "skip_head"),
        ("pause_queue", limit.is_paused, _("Resume"), "resume_channel"),
        ("pause_queue", not limit.is_paused, _("Pause"), "pause_channel"),
        ("set_limit", not limit.is_paused, _("Set limit"), "limit"),
        ("set_limit", is_live and not limit.is_paused, _("Clear"), "clear_limit"),
    ]
    return [
        (label, f"{reverse(f'admin:delayedq_pausedqueue_{name}')}?{query}")
        for permission, fits, label, name in offered
        if fits and may(request, permission)
    ]
