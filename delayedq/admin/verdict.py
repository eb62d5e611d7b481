"""The verdict on the pages: findings as rows, and what can be done about each as a link or a form to a confirmation."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlencode

from django.urls import reverse

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


class Step(NamedTuple):
    """What can be done: a link; or a form, if `posted` has its fields, which asks for confirmation."""

    label: str
    url: str
    posted: dict[str, str]
    command: str


class Row(NamedTuple):
    rule: str
    sentence: str
    since: SafeString | str
    evidence: list[str]
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
        [cut(text, LENGTH) for text in _evidence(request, finding)],
        None if finding.action is None else _step(request, finding.action),
    )


def _evidence(request: HttpRequest, finding: Finding) -> list[str]:
    """Of an error, only the class, if the user may not see what errors say."""
    if finding.rule not in {Rule.SPIKE, Rule.UNKNOWN_TASK} or may(request, "view_payload"):
        return [*finding.evidence]
    error, *rest = finding.evidence
    return [class_of(error), *rest]


def _step(request: HttpRequest, action: NextAction) -> Step | None:
    """None if the user may not do it."""
    permission, url_of = _STEPS[action.verb]
    if not may(request, permission):
        return None
    posted = {}
    if action.verb is Verb.RETRY:
        posted = {"action": "retry", "everything": "on", "query": query_of(int(action.about["fingerprint"]))}
    return Step(cut(action.label, LENGTH), url_of(action), posted, cut(action.command, LENGTH))


def _to(name: str) -> Callable[[NextAction], str]:
    """A page of the admin, to which what the action is about is passed."""

    def url_of(action: NextAction) -> str:
        about = urlencode({name: value for name, value in action.about.items() if name != "fingerprint"})
        return reverse(f"admin:delayedq_{name}") + (f"?{about}" if about else "")

    return url_of


def _schedule(action: NextAction) -> str:
    return f"{reverse('admin:delayedq_cronschedule_schedule')}?{urlencode({'name': action.about['schedule']})}"


def _errors(action: NextAction) -> str:
    query = query_of(int(action.about["fingerprint"]))
    return f"{reverse('admin:delayedq_finishedmessage_changelist')}?{query}"


_STEPS: dict[Verb, tuple[str, Callable[[NextAction], str]]] = {
    Verb.RESUME: ("pause_queue", _to("pausedqueue_resume")),
    Verb.RESUME_TASK: ("pause_queue", _to("pausedqueue_resume_task")),
    Verb.RETRY: ("retry_message", _to("finishedmessage_act")),
    Verb.MESSAGES: ("view_message", _to("message_changelist")),
    Verb.ERRORS: ("view_finishedmessage", _errors),
    Verb.SCHEDULE: ("view_cronschedule", _schedule),
    Verb.WORKERS: ("view_pausedqueue", _to("pausedqueue_changelist")),
}
