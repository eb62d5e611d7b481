"""The verdict on the pages: findings as rows, and what can be done about each as a link."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlencode

from django.urls import reverse
from django.utils.html import format_html

from delayedq.admin.base import cut, may
from delayedq.admin.errors import query_of
from delayedq.admin.moments import when
from delayedq.core.fingerprints import class_of
from delayedq.operations.findings import Rule, Verb
from delayedq.operations.verdict import verdict

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from django.http import HttpRequest
    from django.utils.safestring import SafeString

    from delayedq.operations.findings import Finding, NextAction
    from delayedq.store.base import Store

#: At most this many findings are shown.
SHOWN = 10
#: At most this many characters of a text are shown.
LENGTH = 400
#: The rules whose evidence begins with the text of an error.
_OF_ERRORS = {Rule.SPIKE, Rule.UNKNOWN_TASK}


class Step(NamedTuple):
    """What can be done: a link to a page that shows something, or asks for confirmation."""

    label: str
    url: str
    command: str


class Row(NamedTuple):
    rule: str
    sentence: str
    since: SafeString | str
    evidence: list[SafeString | str]
    step: Step | None


class Verdict(NamedTuple):
    """`worst` None: nothing is wrong. `more`: how many findings are not shown."""

    worst: Row | None
    others: list[Row]
    more: int


def verdict_of(request: HttpRequest, store: Store, now: datetime) -> Verdict:
    """What the first screen says."""
    found = verdict(store, now)
    rows = [_row(request, finding, now) for finding in found[:SHOWN]]
    return Verdict(rows[0] if rows else None, rows[1:], len(found) - len(rows))


def _row(request: HttpRequest, finding: Finding, now: datetime) -> Row:
    return Row(
        finding.rule.name.lower(),
        cut(finding.sentence, LENGTH),
        when(finding.since, now) if finding.since else "",
        [_linked(request, finding, cut(text, LENGTH)) for text in _evidence(request, finding)],
        None if finding.action is None else _step(request, finding.action),
    )


def _evidence(request: HttpRequest, finding: Finding) -> list[str]:
    """Of an error, only the class, if the user may not see what errors say."""
    if finding.rule not in _OF_ERRORS or may(request, "view_payload"):
        return [*finding.evidence]
    error, *rest = finding.evidence
    return [class_of(error), *rest]


def _linked(request: HttpRequest, finding: Finding, text: str) -> SafeString | str:
    """The text; the #id of the message in it is a link to it, if the user may view it."""
    model = "finishedmessage" if finding.rule in _OF_ERRORS else "message"
    found = finding.message_id and re.search(rf"#{finding.message_id}\b", text)
    if not found or not may(request, f"view_{model}"):
        return text
    url = reverse(f"admin:delayedq_{model}_change", args=[finding.message_id])
    return format_html('{}<a href="{}">{}</a>{}', text[: found.start()], url, found[0], text[found.end() :])


def _step(request: HttpRequest, action: NextAction) -> Step | None:
    """None if the user may not do it."""
    permission, url_of = _STEPS[action.verb]
    if not may(request, permission):
        return None
    return Step(cut(action.label, LENGTH), url_of(action), cut(action.command, LENGTH))


def _to(name: str) -> Callable[[NextAction], str]:
    """A page of the admin, to which what the action is about is passed."""

    def url_of(action: NextAction) -> str:
        about = urlencode(action.about)
        return reverse(f"admin:delayedq_{name}") + (f"?{about}" if about else "")

    return url_of


def _schedule(action: NextAction) -> str:
    return f"{reverse('admin:delayedq_cronschedule_schedule')}?{urlencode({'name': action.about['schedule']})}"


def _errors(action: NextAction) -> str:
    query = query_of(int(action.about["fingerprint"]))
    return f"{reverse('admin:delayedq_finishedmessage_changelist')}?{query}"


_STEPS: dict[Verb, tuple[str, Callable[[NextAction], str]]] = {
    Verb.RESUME: ("pause_queue", _to("pausedqueue_resume")),
    Verb.MESSAGES: ("view_message", _to("message_changelist")),
    Verb.ERRORS: ("view_finishedmessage", _errors),
    Verb.SCHEDULE: ("view_cronschedule", _schedule),
    Verb.WORKERS: ("view_pausedqueue", _to("pausedqueue_changelist")),
}
