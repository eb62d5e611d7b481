"""Whatever the address of a page of the admin says, it is shown or refused, and no value is part of a statement."""

from __future__ import annotations

from contextlib import suppress
from urllib.parse import urlencode

import pytest
from django.contrib import admin
from django.http.request import RequestDataTooBig
from hypothesis import given
from hypothesis import strategies as st

from delayedq.models import CronSchedule
from tests.admin.conftest import admin_site_urls, operator  # noqa: F401
from tests.admin.given import dead, offer
from tests.fuzz.effort import EFFORT, texts, tried

#: Must not stand in a statement, in any spelling: it comes as a parameter.
MARK = "zq7'\"zq7"
#: What pages read from their address.
NAMES = (
    "q", "queue", "kind", "state", "outcome", "since", "until", "after", "before", "priority", "worker", "page", "p",
    "o", "key", "task", "error", "sort", "name", "ask", "window", "channel", "scope", "format", "e", "all", "ids",
    "flow", "step", "schedule", "at", "tz", "hours", "group", "metadata", "argument", "value", "limit", "progress",
)  # fmt: skip
values = texts | st.sampled_from([
    MARK, f"key={MARK}", f"queue:{MARK}", f"args.0={MARK}", f"since:{MARK}", f"kind:{MARK} state:due", "a=b=c", "::",
    "9999-12-31T23:59:59", "0001-01-01", "0001-01-01T00:00:00+14:00~1", "9" * 30, "-9999999999", "1e999", "NaN", "due",
    "failed", "leased", "scheduled", "tests.app.tasks.echo", "mail", "zq7", "2026-02-30", "now", "%", "_%\\",
])  # fmt: skip
queries = st.dictionaries(st.sampled_from(NAMES) | texts, values | st.lists(values, max_size=3), max_size=4)


def pages():
    """All lists of the admin that are ours, and the pages beside them whose path has no id."""
    found = []
    for model, page in admin.site._registry.items():
        label = f"{model._meta.app_label}/{model._meta.model_name}"
        if label.startswith("delayedq"):
            found += [f"/admin/{label}/{one.pattern}" for one in page.get_urls() if "<" not in str(one.pattern)]
    return sorted(set(found))


@pytest.mark.timeout(300 * EFFORT)
def test_no_address_breaks_a_page_or_becomes_part_of_a_statement(store, connection, operator):  # noqa: F811
    offer(store, "a", '{"args":["zq7"]}')
    dead(store, "b")
    CronSchedule.objects.create(name="s", covered_until=store.now())
    urls = pages()
    assert len(urls) > 15
    executed = []

    def noted(execute, sql, params, many, context):
        executed.append(str(sql))
        return execute(sql, params, many, context)

    @tried(60)
    @given(st.sampled_from(urls), queries)
    def asked(url, query):
        with suppress(RequestDataTooBig):
            answer = operator.get(f"{url}?{urlencode(query, doseq=True, errors='surrogatepass')}")
            assert answer.status_code in {200, 302, 400, 403, 404, 405}, (url, query)
            if answer.streaming:
                list(answer.streaming_content)

    operator.raise_request_exception = True
    with connection.execute_wrapper(noted):
        asked()
    assert len(executed) > 60
    assert [sql for sql in executed if "zq7'" in sql or 'zq7"' in sql] == []
