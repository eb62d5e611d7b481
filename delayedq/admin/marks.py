"""Marks in the lists: the state of a message as a pill, and the name of a task."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from django.urls import reverse
from django.utils.html import format_html, format_html_join
from django.utils.translation import gettext_lazy as _
from django.utils.translation import pgettext_lazy

from delayedq.store.protocol import BARE

if TYPE_CHECKING:
    from django.utils.safestring import SafeString

#: Lists show about this much of a module.
MODULE_LENGTH = 24
#: The states of live messages and the outcomes of ended ones, as the pages call them.
STATES = {
    "due": pgettext_lazy("state", "due"),
    "scheduled": pgettext_lazy("state", "scheduled"),
    "running": pgettext_lazy("state", "running"),
    "retrying": pgettext_lazy("state", "retrying"),
    "paused": pgettext_lazy("state", "paused"),
    "lost": pgettext_lazy("state", "lost"),
    "succeeded": pgettext_lazy("state", "succeeded"),
    "failed": pgettext_lazy("state", "failed"),
    "cancelled": pgettext_lazy("state", "cancelled"),
    "expired": pgettext_lazy("state", "expired"),
    "superseded": pgettext_lazy("state", "superseded"),
    "active": pgettext_lazy("state", "active"),
    "disabled": pgettext_lazy("state", "disabled"),
    "served": pgettext_lazy("state", "served"),
    "late": pgettext_lazy("state", "late"),
    "silent": pgettext_lazy("state", "silent"),
    "ended": pgettext_lazy("state", "ended"),
    "unknown": pgettext_lazy("state", "unknown"),
    "waiting": pgettext_lazy("state", "waiting"),
    "filling": pgettext_lazy("state", "filling"),
    "skipped": pgettext_lazy("state", "skipped"),
    "undone": pgettext_lazy("state", "undone"),
    "full": pgettext_lazy("state", "full"),
    "has room": pgettext_lazy("state", "has room"),
    "blocked": pgettext_lazy("state", "blocked"),
    "not defined": _("not defined"),
    "disabled in the settings": _("disabled in the settings"),
    "can't be read here": _("can't be read here"),
    "no live worker": _("no live worker"),
    "polled by code": _("polled by code"),
}
#: What has no shape and colour of its own looks like something that has.
_LOOKS = {
    "active": "succeeded",
    "served": "succeeded",
    "disabled": "paused",
    "disabled in the settings": "paused",
    "not defined": "cancelled",
    "can't be read here": "lost",
    "ended": "cancelled",
    "unknown": "cancelled",
    "waiting": "scheduled",
    "filling": "running",
    "skipped": "cancelled",
    "undone": "cancelled",
    "late": "lost",
    "full": "retrying",
    "has room": "succeeded",
    "blocked": "paused",
    "silent": "lost",
    "no live worker": "lost",
    "polled by code": "cancelled",
}


def pill(state: str) -> SafeString:
    """The state as a word with a shape and a colour, so that it is seen at a glance by everybody."""
    look = _LOOKS.get(state, state) if state in STATES else "scheduled"
    return format_html('<span class="dq-pill dq-pill-{}">{}</span>', look, STATES.get(state, state))


def state_word(state: str) -> str:
    """The state as a word alone."""
    return str(STATES.get(state, state))


def task(path: str) -> SafeString:
    """A link to a task by its short name, with the end of its module; it may break only at a dot or an underscore."""
    module, _dot, name = path.rpartition(".")
    return _task(path, name, shortened(module))


def full_task(path: str) -> SafeString:
    """The same with the whole module."""
    module, _dot, name = path.rpartition(".")
    return _task(path, name, module)


def _task(path: str, name: str, module: str) -> SafeString:
    inside = _breakable(name), _breakable(module)
    if BARE in path:  # of a bare queue, which has no task
        marked = '<span class="dq-task" title="{}"><b>{}</b> <span class="dq-module">{}</span></span>'
        return format_html(marked, path, *inside)
    marked = '<a class="dq-task" title="{}" href="{}"><b>{}</b> <span class="dq-module">{}</span></a>'
    return format_html(marked, path, url_of_task(path), *inside)


def url_of_task(path: str) -> str:
    """The page of a task."""
    return f"{reverse('admin:delayedq_dashboard_task')}?{urlencode({'name': path})}"


def shortened(module: str) -> str:
    """The module without its first parts, if it is long: `…flights.tasks`. It is cut at dots, never within a word."""
    rest = module
    while len(rest) > MODULE_LENGTH and "." in rest:
        rest = rest.partition(".")[2]
    return module if rest == module else f"…{rest}"


def _breakable(name: str) -> SafeString:
    parts = re.split(r"(?<=[._|])", name)
    return format_html_join("", "{}<wbr>", ((part,) for part in parts if part))
