"""The pages of flows: the list, the picture, and what can be done to one."""

from __future__ import annotations

from datetime import timedelta

from django.utils import timezone

from delayedq import Flow, chain, group
from delayedq.models import Flow as Row
from delayedq.models import FlowStep, Message
from tests.admin.given import text_of
from tests.app import tasks
from tests.flows.given import fails, run

FLOWS = "/admin/delayedq/flow/"


def test_the_list_shows_the_latest_first(operator):
    chain(tasks.nothing.s(), tasks.nothing.s()).enqueue(name="first")
    run()
    chain(tasks.nothing.s()).enqueue(name="<second>")
    page = operator.get(FLOWS)
    assert [name for _, name, _ in page.context["rows"]] == ["<second>", "first"]
    assert "2 / 2" in text_of(page)
    assert "<second>" not in page.content.decode()


def test_a_page_has_the_picture_of_the_graph(operator):
    flow = Flow("diamond", policy="continue")
    flow.add("top", tasks.nothing.s())
    flow.add("left", group(tasks.nothing.s(), tasks.nothing.s()), after="top")
    flow.add("<right>", fails("right"), after="top")
    flow.add("end", tasks.nothing.s(), after=["left", "<right>"])
    result = flow.enqueue()
    page = operator.get(f"{FLOWS}{result.id}/change/")
    assert [row.state for row in page.context["rows"]] == ["running", "waiting", "waiting", "waiting"]
    assert "It waits for left, <right>." in text_of(page)
    run()
    page = operator.get(f"{FLOWS}{result.id}/change/")
    assert [row.state for row in page.context["rows"]] == ["succeeded", "succeeded", "failed", "skipped"]
    content = page.content.decode()
    assert content.count("<rect") == 4
    assert content.count('class="dq-flow-line') == 4
    assert "<right>" not in content
    assert sum(row.is_critical for row in page.context["rows"]) == 2


def test_a_page_says_how_long_each_step_took(operator):
    """In the picture and in the table, of those that have ended."""
    flow = Flow("durations")
    for number in range(4):
        flow.add(str(number), tasks.nothing.s(), after=[str(number - 1)] if number else [])
    result = flow.enqueue()
    now = timezone.now()
    times = [
        ("succeeded", now - timedelta(hours=5), now - timedelta(hours=2, minutes=55)),
        ("succeeded", now - timedelta(hours=2, minutes=55), now - timedelta(minutes=12)),
        ("running", now - timedelta(minutes=12), None),
        ("waiting", None, None),
    ]
    for number, (state, released_at, ended_at) in enumerate(times):
        row = FlowStep.objects.filter(name=str(number))
        row.update(state=state, released_at=released_at, ended_at=ended_at)
    page = operator.get(f"{FLOWS}{result.id}/change/")
    assert [row.took for row in page.context["rows"]] == ["2 h 5 min", "2 h 43 min", "", ""]
    content = page.content.decode()
    assert content.count(" · 2 h 5 min</text>") == 1
    assert content.count('"Took">2 h 5 min') == 1


def test_cancel_and_retry_ask_first(operator):
    result = chain(tasks.nothing.s(), tasks.nothing.s()).enqueue()
    page = operator.get(f"{FLOWS}{result.id}/change/")
    assert page.context["can_cancel"]
    assert not page.context["can_retry"]
    assert operator.get(f"{FLOWS}{result.id}/cancel/now/").status_code == 200
    assert Message.objects.exists()
    operator.post(f"{FLOWS}{result.id}/cancel/now/")
    assert result.state == "cancelled"
    assert operator.get(f"{FLOWS}{result.id}/change/").context["can_retry"]
    operator.post(f"{FLOWS}{result.id}/retry/now/")
    assert run() == ["succeeded"] * 2
    page = operator.post(f"{FLOWS}{result.id}/retry/now/", follow=True)
    assert "only one that has failed" in text_of(page)
    assert operator.get(f"{FLOWS}{result.id}/delete/now/").status_code == 404
    assert operator.get(f"{FLOWS}{result.id + 1}/change/").status_code == 404


def test_permissions(member):
    result = chain(tasks.nothing.s()).enqueue()
    stranger, viewer = member(), member("view_flow", name="carl")
    assert stranger.get(FLOWS).status_code == 403
    assert stranger.get(f"{FLOWS}{result.id}/change/").status_code == 403
    assert viewer.get(f"{FLOWS}{result.id}/change/").context["can_cancel"] is False
    assert viewer.post(f"{FLOWS}{result.id}/cancel/now/").status_code == 403
    assert Row.objects.get().stopped_at is None
    assert member("view_flow", "cancel_message", name="dora").post(f"{FLOWS}{result.id}/cancel/now/").status_code == 302
    assert result.state == "cancelled"


def test_only_lines_of_the_critical_path_are_thick(operator):
    """The first step is on it, and so is the last: the line between them is not, as another step came between."""
    flow = Flow("shortcut")
    flow.add("first", tasks.nothing.s())
    flow.add("second", tasks.nothing.s(), after="first")
    flow.add("last", tasks.nothing.s(), after=["first", "second"])
    result = flow.enqueue()
    run()
    page = operator.get(f"{FLOWS}{result.id}/change/")
    assert sum(row.is_critical for row in page.context["rows"]) == 3
    assert sorted(is_critical for _, is_critical in page.context["lines"]) == [False, True, True]
