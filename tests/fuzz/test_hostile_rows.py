"""Who may write rows and no code: nothing runs but tasks that are registered, nobody is blocked, the admin shows all.

Each column of a message has each hostile value once; all of these rows lie in front of messages of others.
"""

from __future__ import annotations

import os
import sys

import pytest

from delayedq.models import FinishedMessage, Message
from tests.admin.conftest import admin_site_urls, operator  # noqa: F401
from tests.admin.given import HISTORY, MESSAGES
from tests.app.tasks import echo, nothing
from tests.fuzz import hostile
from tests.fuzz.hostile import NOW, insert, values
from tests.worker.attempts import drained

#: Of these a wrong value is one of another message, which the row names.
NAMES = {"id"}
OTHERS = 20
RAW_TIMES = {text for texts in hostile.RAW_TIMES.values() for text in texts}


def base(**fields):
    return {
        "queue": "default",
        "kind": echo.module_path,
        "scheduled_at": NOW,
        "payload": "{}",
        "max_attempts": 1,
        "priority": 0,
        **fields,
    }


def rows(model, vendor):
    """A row for each hostile value of each column, which has usual values in the others."""
    for field in model._meta.concrete_fields:
        if field.name in NAMES:
            continue
        leased = {"lease_token": 5, "leased_until": NOW} if field.name.startswith(("lease", "claimed")) else {}
        for value in values(field, vendor):
            yield base(**{**leased, field.column: value})


def other_kinds():
    for path in hostile.PATHS:
        yield base(kind=path, payload='{"args":["touch hostile"]}')
        yield base(kind="", queue=path)


@pytest.mark.timeout(300)
def test_workers_run_what_is_registered_and_block_nobody(store, alias, connection, monkeypatch):
    monkeypatch.setattr(os, "system", hostile.trap)
    let_in = sum(insert(alias, Message, row) for row in [*rows(Message, connection.vendor), *other_kinds()])
    assert let_in > 200
    asked = [nothing.enqueue(number).id for number in range(OTHERS)]
    before = set(sys.modules)

    drained(store)

    assert hostile.called == []
    assert not {name for name in set(sys.modules) - before if name.startswith(("antigravity", "this"))}
    assert FinishedMessage.objects.filter(id__in=map(int, asked), outcome="succeeded").count() == OTHERS
    unknown = FinishedMessage.objects.filter(kind__in=hostile.PATHS)
    assert set(unknown.values_list("outcome", flat=True)) <= {"failed"}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_admin_shows_each_row(store, alias, connection, operator):  # noqa: F811
    """But those with a time that Python lacks."""
    held = [row for row in rows(Message, connection.vendor) if not set(RAW_TIMES) & {*map(str, row.values())}]
    for number, row in enumerate(held):
        insert(alias, Message, row)
        ended = {**row, "outcome": "failed", "id": number + 1, "attempts": 1}
        columns = {field.column for field in FinishedMessage._meta.concrete_fields}
        insert(alias, FinishedMessage, {name: value for name, value in ended.items() if name in columns})

    for where, model in ((MESSAGES, Message), (HISTORY, FinishedMessage)):
        ids = list(model.objects.order_by("id").values_list("id", flat=True))
        assert len(ids) > 200
        assert operator.get(where).status_code == 200
        for id_ in ids:
            assert operator.get(f"{where}{id_}/change/").status_code == 200, id_
