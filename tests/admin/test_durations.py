"""The page of durations."""

from __future__ import annotations

from django.test.utils import CaptureQueriesContext

from delayedq.operations import counting
from tests.admin.given import text_of
from tests.operations.test_durations import ended, stored_as_of_now

DURATIONS = "/admin/delayedq/dashboard/durations/"


def test_the_slowest_tasks_come_first_with_units(operator, store):
    rows = [ended(1, 0.25, 2, kind="tests.quick"), ended(2, 90, 7200, kind="tests.<slow>", queue="other")]
    stored_as_of_now(store, rows)
    text = text_of(operator.get(DURATIONS, {"span": "day"}))
    slow, quick = text.index("tests.<slow>"), text.index("tests.quick")
    assert slow < quick
    assert "0 1.5 min 1.5 min 2.0 h 2.0 h 2.0 h" in text
    assert "0 250 ms 250 ms 2 s 2 s 2 s" in text


def test_the_slowest_is_shown_however_rarely_it_runs_and_all_can_be_reached(operator, store):
    rows = [ended(2 * n, 0.1, 1, kind=f"tests.often{n // 2:02}") for n in range(120)]
    rows.append(ended(1, 0.1, 600, kind="tests.rarely"))
    rows += [ended(2 * n + 1, 0.1, 0.5 if n < 397 else 900, kind="tests.mostly") for n in range(200, 400)]
    stored_as_of_now(store, rows)
    text = text_of(operator.get(DURATIONS, {"span": "day"}))
    assert text.index("tests.rarely") < text.index("tests.often")
    found, address = [], {"span": "day", "sort": "longest"}
    while address is not None:
        (tasks, _queues) = operator.get(DURATIONS, address).context["tables"]
        found += [row.name for row in tasks.rows]
        address = address | {"after_kind": tasks.pages["next"]} if tasks.pages["next"] else None
    assert found[:2] == ["tests.mostly", "tests.rarely"]
    assert sorted(found) == ["tests.mostly", *(f"tests.often{n:02}" for n in range(60)), "tests.rarely"]
    assert operator.get(DURATIONS, {"sort": "x", "after_kind": "x"}).status_code == 200


def test_of_a_sample_the_pages_say_what_it_may_lack_and_more_is_read_on_request(operator, store, monkeypatch):
    monkeypatch.setattr(counting, "MOST", 100)
    rows = [ended(n, 0.1, 1, kind="tests.often", ago=n) for n in range(1, 3_001)]
    stored_as_of_now(store, [*rows, ended(4_000, 0.1, 600, kind="tests.rarely")])
    usual = operator.get(DURATIONS, {"span": "hour"})
    of_task = operator.get("/admin/delayedq/dashboard/task/", {"name": "tests.often"})
    for page in (usual, of_task):
        assert "What runs rarely may be missing, and the longest run is that of the sample." in text_of(page)
        assert "?span=hour&amp;thorough=on" in page.content.decode()
    text = text_of(operator.get(f"{DURATIONS}?span=hour&thorough"))
    assert "may be missing" not in text
    assert text.index("tests.rarely") < text.index("tests.often")
    assert "10 min" in text
    assert "3,000" in text


def test_a_task_links_to_its_page_and_a_bare_queue_to_its_figures(operator, store):
    rows = [ended(1, 1, 1, kind="tests.quick"), ended(2, 1, 1, kind="a|json", queue="a|json")]
    stored_as_of_now(store, rows)
    page = operator.get(DURATIONS, {"span": "day"}).content.decode()
    assert 'href="/admin/delayedq/dashboard/task/?name=tests.quick"' in page
    assert 'href="/admin/delayedq/dashboard/?span=hour&amp;kind=a%7Cjson"' in page


def test_nothing_ended(operator):
    assert "Nothing ended in this time." in text_of(operator.get(DURATIONS))


def test_who_may_not_see_the_dashboard_is_refused(member, store, connection):
    client = member()
    with CaptureQueriesContext(connection) as asked:
        assert client.get(f"{DURATIONS}?span=week&thorough=on").status_code == 403
    assert not [one for one in asked if "delayedq_" in one["sql"]]
    assert member("view_dashboard", name="eve").get(DURATIONS).status_code == 200
