"""The panel that says why a message is not running, on its page."""

from __future__ import annotations

from delayedq.operations.pauses import pause
from tests.admin.given import HISTORY, MESSAGES, dead, offer, run, text_of
from tests.store.test_presence import worker


def answers(client, id_, where=MESSAGES):
    page = client.get(f"{where}{id_}/change/")
    assert "Why is it not running?" in text_of(page)
    return text_of(page)


def test_a_message_tells_what_it_waits_for(store, operator):
    id_ = offer(store, seconds=3 * 3600)
    pause("mail")
    found = answers(operator, id_)
    assert "It is due in 3 h" in found or "It is due in 2 h 59 min" in found
    assert "Its queue, mail, was paused" in found
    assert "No live worker serves its queue, mail." in found


def test_a_message_that_runs_tells_where(store, operator):
    id_ = offer(store)
    run(store)
    store.attend([worker("worker-1")])
    assert "It is leased by worker-1 until" in answers(operator, id_)


def test_a_dead_letter_links_to_who_holds_its_key(store, operator):
    ended = dead(store, "a")
    live = offer(store, "a")
    page = operator.get(f"{HISTORY}{ended}/change/")
    assert f"Its key is held by #{live} now" in text_of(page)
    assert f'href="{MESSAGES}{live}/change/"' in page.content.decode()


def test_what_an_answer_quotes_is_escaped(store, operator):
    id_ = offer(store, kind="<script>alert(1)</script>", queue="<img src=x>")
    page = operator.get(f"{MESSAGES}{id_}/change/")
    assert "<script>alert" not in page.content.decode()
    assert "<img" not in page.content.decode()


def test_an_answer_never_imports_what_a_message_names(store, operator):
    id_ = offer(store, kind="antigravity.fly")
    assert "Its task is not registered here: antigravity.fly." in answers(operator, id_)
