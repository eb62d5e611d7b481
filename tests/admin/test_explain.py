"""The panel that says why a message is not running, on its page."""

from __future__ import annotations

from delayedq.operations.pauses import pause
from delayedq.store import worker_registry
from tests.admin.given import HISTORY, MESSAGES, dead, offer, run, text_of
from tests.store.test_worker_registry import worker


def answers(client, id_, where=MESSAGES):
    page = client.get(f"{where}{id_}/change/")
    assert any(title in text_of(page) for title in ("Why is it not running?", "Where it runs", "How it ended"))
    return text_of(page)


def test_the_page_of_a_waiting_message_shows_the_obstacles(store, operator):
    id_ = offer(store, seconds=3 * 3600)
    pause("mail")
    found = answers(operator, id_)
    assert "It is due in 3 h" in found or "It is due in 2 h 59 min" in found
    assert "Its queue, mail, was paused" in found
    assert "No live worker serves its queue, mail." in found


def test_the_page_of_a_running_message_names_its_worker(store, operator):
    id_ = offer(store)
    run(store)
    worker_registry(store.alias).heartbeat([worker("worker-1")])
    assert "It is leased by worker-1 until" in answers(operator, id_)


def test_a_dead_letter_links_to_the_live_message_with_its_key(store, operator):
    ended = dead(store, "a")
    live = offer(store, "a")
    page = operator.get(f"{HISTORY}{ended}/change/")
    assert f"Its key is held by #{live} now" in text_of(page)
    assert f'href="{MESSAGES}{live}/change/"' in page.content.decode()


def test_quoted_texts_in_answers_are_escaped(store, operator):
    id_ = offer(store, kind="<script>alert(1)</script>", queue="<img src=x>")
    page = operator.get(f"{MESSAGES}{id_}/change/")
    assert "<script>alert" not in page.content.decode()
    assert "<img" not in page.content.decode()


def test_explaining_never_imports_the_path_in_a_message(store, operator):
    id_ = offer(store, kind="antigravity.fly")
    assert "Its task is not registered here: antigravity.fly." in answers(operator, id_)
