"""The history's pages go on in the lake: search by key or id, a message's page, and sending it again. No Spark."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
from django.contrib.admin.models import LogEntry

from delayedq.core.errors import with_error
from delayedq.models import Edit, FinishedMessage, Message
from delayedq.operations.archived import find_archived
from tests.admin.given import HISTORY, text_of
from tests.missing import missing

if find_spec("deltalake") is None:
    missing("pyspark", allow_module_level=True)

from delayedq.pipeline.lake.table import LakeTable
from tests.pipeline.given import NOW, finished
from tests.pipeline.lake.booked import archive

HOSTILE = "<script>alert(1)</script>"


@pytest.fixture
def lake(store, tmp_path, settings):
    """Two messages that were archived, and one that was not."""
    table = LakeTable(str(tmp_path / "lake"))
    table.create()
    settings.DELAYEDQ = {"LAKE": table.path}
    kept = finished(3, key="kept")
    errors = with_error(
        None, attempt=1, failed_at=NOW, seconds=1.0, worker="w", exception="app.Overbooked", message="Seat 12 is taken"
    )
    failed = {"key": "invoice-1", "payload": '{"args": [1, 2]}', "outcome": "failed", "errors": errors}
    messages = [finished(1, **failed), finished(2, key=HOSTILE)]
    FinishedMessage.objects.bulk_create([*messages, kept])
    archive(table, messages)
    return table


def page_of(id_):
    return f"{HISTORY}{id_}/change/"


def again(id_):
    return f"{HISTORY}{id_}/again/"


def test_a_search_by_key_or_id_goes_on_in_the_lake(operator, lake):
    for text in ("invoice-1", "1"):
        page = operator.get(HISTORY, {"q": text})
        assert [row.id for row in page.context["archived_rows"]] == [1]
        assert "Found in the lake" in text_of(page)
    for text in ("kept", "nothing"):
        assert "Found in the lake" not in text_of(operator.get(HISTORY, {"q": text}))
    page = operator.get(HISTORY, {"q": HOSTILE})
    assert [row.id for row in page.context["archived_rows"]] == [2]
    assert HOSTILE not in page.content.decode()


def test_a_list_without_a_search_does_not_look_into_the_lake(operator, lake, monkeypatch):
    def never(*_):
        raise AssertionError

    monkeypatch.setattr(LakeTable, "snapshot", never)
    assert operator.get(HISTORY).status_code == 200
    assert operator.get(page_of(3)).status_code == 200


def test_its_page_shows_it_as_it_was(operator, lake):
    text = text_of(operator.get(page_of(1)))
    assert "this message has left the database" in text
    assert "invoice-1" in text
    assert "Send it again" in text
    assert "has left the database" not in text_of(operator.get(page_of(3)))
    assert operator.get(page_of(99)).status_code == 404


def test_it_is_sent_again_once_confirmed_and_that_is_logged(operator, lake):
    assert "Send it again" in text_of(operator.get(again(1)))
    assert not Message.objects.exists()

    operator.post(again(1))

    sent = Message.objects.get()
    assert (sent.key, sent.payload, sent.queue, sent.attempt) == ("invoice-1", '{"args": [1, 2]}', "default", 0)
    assert "the archived message 1" in LogEntry.objects.get().get_change_message()
    assert Edit.objects.get().description == f"Send archived message 1 again, as {sent.pk}"
    assert "A live message has its key" in text_of(operator.post(again(1), follow=True))
    assert Message.objects.count() == 1


def test_who_may_not_retry_may_not_send_it(member, lake):
    looker = member()
    assert "Send it again" not in text_of(looker.get(page_of(1)))
    assert (looker.get(again(1)).status_code, looker.post(again(1)).status_code) == (403, 403)
    assert "Send it again" in text_of(member("retry_message", name="rita").get(page_of(1)))
    assert not Message.objects.exists()


def test_who_may_not_read_payloads_reads_none_here(member, operator, lake):
    looker = member()
    for url, given in ((page_of(1), {}), (HISTORY, {"q": "invoice-1", "outcome": "failed"})):
        assert "Seat 12" in text_of(operator.get(url, given))
        assert "Seat 12" not in text_of(looker.get(url, given))
    assert "Send a copy" not in text_of(operator.get(page_of(1)))  # it is sent again instead


def test_what_is_in_the_history_is_not_sent_from_here(operator, lake):
    assert operator.post(again(3)).url == page_of(3)
    assert not Message.objects.exists()


def test_a_lake_that_can_not_be_read_is_a_sentence_on_the_page(operator, store, settings, tmp_path):
    (tmp_path / "thesis.txt").write_text("mine")
    settings.DELAYEDQ = {"LAKE": str(tmp_path)}
    (tmp_path / "_delta_log").mkdir()
    (tmp_path / "_delta_log" / "00000000000000000000.json").write_text("no JSON")
    assert "Archived messages are not shown" in text_of(operator.get(HISTORY, {"q": "a"}))


@pytest.mark.parametrize("alias", ["sqlite"], indirect=True)
def test_without_an_archive_nothing_is_found(store, settings):
    settings.DELAYEDQ = {"LAKE": None}
    assert find_archived(store, id=1) == ([], True)
