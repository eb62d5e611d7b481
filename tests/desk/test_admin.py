"""The list of items in the admin: whose items it shows, and what of them."""

from __future__ import annotations

import re

import pytest
from django.contrib.auth.models import Group, Permission
from django.test import Client

from delayedq.desk import desk_task
from delayedq.desk.models import Automation, DeskQueue, Item, State
from delayedq.models import Edit, Message
from tests.desk.given import ALL, QUEUE, opened, person, refund

pytestmark = [
    pytest.mark.usefixtures("store"),
    pytest.mark.urls("tests.desk.urls"),
    pytest.mark.parametrize("alias", ["sqlite"], indirect=True),
]
LIST = "/admin/delayedq_desk/item/"
MODES = "/admin/delayedq_desk/automation/"


@desk_task(queue_name=QUEUE, sensitive=True)
def secret(order):
    return order


def signed_in(user):
    client = Client()
    client.force_login(user)
    return client


def text_of(answer):
    assert answer.status_code == 200
    return answer.content.decode()


def test_who_is_not_of_the_groups_of_a_queue_sees_none_of_its_items():
    item, ann = opened(), person("ann", "view")
    client = signed_in(ann)
    assert f"{LIST}{item.pk}/change/" in text_of(client.get(LIST))
    group = Group.objects.create(name="office")
    DeskQueue.objects.create(queue=QUEUE).groups.add(group)
    assert f"{LIST}{item.pk}/change/" not in text_of(client.get(LIST))
    assert client.get(f"{LIST}{item.pk}/change/").status_code == 302
    ann.groups.add(group)
    assert client.get(f"{LIST}{item.pk}/change/").status_code == 200


def test_the_list_is_filtered_by_the_queues_that_its_reader_sees():
    first, second = opened(), opened()
    Item.objects.filter(pk=second.pk).update(queue="letters", is_open=False, state=State.DONE)
    client = signed_in(person("ann", "view"))
    page = text_of(client.get(LIST, {"queue": "letters"}))
    assert f"{LIST}{second.pk}/change/" in page
    assert f"{LIST}{first.pk}/change/" not in page
    assert f'href="?queue={QUEUE}"' in page
    DeskQueue.objects.create(queue=QUEUE).groups.add(Group.objects.create(name="office"))
    assert f'href="?queue={QUEUE}"' not in text_of(client.get(LIST))
    assert f"{LIST}{first.pk}/change/" not in text_of(client.get(LIST, {"queue": QUEUE}))


@pytest.mark.parametrize("name", ["truth", "proposal", "confidence", "decision", "reason", "why", "digest"])
def test_no_query_string_asks_for_what_is_not_shown(name):
    opened()
    client = signed_in(person("ann", "view"))
    assert client.get(LIST, {f"{name}__gt": "1"}).status_code == 400
    assert client.get(LIST, {"mode__exact": "people"}).status_code == 200


@pytest.mark.parametrize("name", ["state", "kind", "mode__exact", "queue"])
def test_a_filter_for_what_no_database_stores_is_refused(name):
    assert signed_in(person("ann", "view")).get(LIST, {name: "a\0b"}).status_code == 400


def test_what_is_decided_blind_shows_no_proposal_until_it_is_closed_even_if_it_was_sent_back():
    item = opened()
    given = {"proposal": "771177", "truth": "882288", "confidence": 0.8765, "decision": "993399", "agreed": False}
    Item.objects.filter(pk=item.pk).update(is_blind=True, state=State.REJECTED, **given)
    client = signed_in(person("ann", *ALL))
    page = text_of(client.get(f"{LIST}{item.pk}/change/"))
    assert "993399" in page
    assert not [text for text in ("771177", "882288", "0.8765", "field-agreed") if text in page]
    Item.objects.filter(pk=item.pk).update(is_open=False, state=State.DONE)
    page = text_of(client.get(f"{LIST}{item.pk}/change/"))
    assert all(text in page for text in ("771177", "882288", "993399"))


def test_nothing_shown_of_an_item_tells_guessed_arguments_from_others():
    item, client = opened(secret, 4711), signed_in(person("ann", *ALL))
    assert item.digest
    assert item.digest not in text_of(client.get(f"{LIST}{item.pk}/change/"))


def test_what_sensitive_tasks_have_decided_is_masked():
    item = opened(refund)
    given = {"proposal": '"771177"', "truth": '"882288"', "decision": '"993399"', "reason": "664466"} | {
        "why": "557755"
    }
    Item.objects.filter(pk=item.pk).update(is_open=False, state=State.DONE, **given)
    client = signed_in(person("ann", *ALL))
    for kind, is_masked in ((refund.module_path, False), (secret.module_path, True)):
        Item.objects.filter(pk=item.pk).update(kind=kind)
        page = text_of(client.get(f"{LIST}{item.pk}/change/"))
        assert [text in page for text in ("771177", "882288", "993399", "664466", "557755")] == [not is_masked] * 5


@desk_task(queue_name=QUEUE)
def by_people(order): ...


def setter(name, *verbs):
    """Who may set modes, and see the desk."""
    user = person(name, "view")
    names = [f"{verb}_automation" for verb in ("add", "change", "delete", "view", *verbs)]
    user.user_permissions.add(*Permission.objects.filter(codename__in=names))
    return user


@pytest.mark.parametrize(
    ("kind", "mode", "said"),
    [
        (refund.module_path, "automatic", None),
        (by_people.module_path, "automatic", "This task has no handler: people decide."),
        (by_people.module_path, "people", None),
        ("tests.desk.given.told", "people", "You may not set who decides"),
        ("no.such.task", "shadow", "You may not set who decides"),
    ],
)
def test_the_form_of_a_mode_refuses_what_the_button_refuses(kind, mode, said):
    client = signed_in(setter("ann"))
    answer = client.post(f"{MODES}add/", {"kind": kind, "mode": mode})
    assert answer.status_code == (302 if said is None else 200)
    assert said is None or said in text_of(answer)
    assert Automation.objects.count() == (said is None)


def test_who_does_not_see_a_queue_sets_no_mode_in_it_by_form_list_or_deletion():
    boss, ann = person("boss", superuser=True), setter("ann")
    row = Automation.objects.create(kind=refund.module_path, mode="people")
    gone = Automation.objects.create(kind="no.such.task", mode="shadow")
    DeskQueue.objects.create(queue=QUEUE).groups.add(Group.objects.create(name="office"))
    rows = {"form-TOTAL_FORMS": 2, "form-INITIAL_FORMS": 2, "form-0-id": gone.pk, "form-0-mode": "shadow"}
    rows |= {"form-1-id": row.pk, "form-1-mode": "automatic", "_save": "Save"}
    for user, changes in ((ann, False), (boss, True)):
        client = signed_in(user)
        for address, sent in ((f"{MODES}{row.pk}/change/", {"mode": "automatic"}), (MODES, rows)):
            Automation.objects.filter(pk=row.pk).update(mode="people")
            answer = client.post(address, sent)
            row.refresh_from_db()
            assert (answer.status_code, row.mode) == ((302, "automatic") if changes else (200, "people"))
            assert changes or "You may not set who decides" in text_of(answer)
        answer = client.post(f"{MODES}{row.pk}/delete/", {"post": "yes"})
        assert (answer.status_code, Automation.objects.filter(pk=row.pk).exists()) == (
            302 if changes else 403,
            not changes,
        )
    signed_in(ann).post(f"{MODES}{gone.pk}/delete/", {"post": "yes"})
    assert not Automation.objects.exists()


def test_whoever_changes_a_mode_in_the_admin_is_among_the_edits_and_in_the_history():
    """By the form, the list, a deletion, and one of several; what is saved as it was changes nothing."""
    client, kind, gone = signed_in(person("boss", superuser=True)), refund.module_path, "no.such.task"
    client.post(f"{MODES}add/", {"kind": kind, "mode": "shadow"})
    row = Automation.objects.get()
    for mode in ("automatic", "automatic"):
        client.post(f"{MODES}{row.pk}/change/", {"mode": mode})
    rows = {"form-TOTAL_FORMS": 1, "form-INITIAL_FORMS": 1, "form-0-id": row.pk, "_save": "Save"}
    client.post(MODES, rows | {"form-0-mode": "people"})
    client.post(f"{MODES}{row.pk}/delete/", {"post": "yes"})
    last = [Automation.objects.create(kind=one, mode="assisted").pk for one in (gone, kind)]
    client.post(MODES, {"action": "delete_selected", "_selected_action": last, "post": "yes"})
    assert not Automation.objects.exists()
    as_in_code = "as in the code"
    changes = [(as_in_code, "shadow"), ("shadow", "automatic"), ("automatic", "people"), ("people", as_in_code)]
    said = [f"Set the mode of {kind}: {after}, before: {before}" for before, after in changes]
    edits = list(Edit.objects.order_by("id"))
    assert [edit.description for edit in edits[:4]] == said
    assert {edit.description for edit in edits[4:]} == {
        f"Set the mode of {one}: as in the code, before: assisted" for one in (gone, kind)
    }
    assert {edit.made_by for edit in edits} == {"boss"}
    assert Message.objects.filter(kind="delayedq.desk.tasks.mode_set").count() == 5, "all but of the task that is gone"


def test_a_row_stays_that_of_its_task():
    row = Automation.objects.create(kind=refund.module_path, mode="people")
    signed_in(setter("ann")).post(f"{MODES}{row.pk}/change/", {"kind": secret.module_path, "mode": "shadow"})
    assert list(Automation.objects.values_list("kind", "mode")) == [(refund.module_path, "shadow")]


def test_its_texts_are_in_the_language_of_the_reader():
    item = opened()
    item.take(person("bob", *ALL))
    client = signed_in(person("boss", superuser=True))
    for language, texts in (("de", ("Inhaber", "Warteschlange", "Begründung")), ("he", ("מחזיק", "תור", "נימוק"))):
        pages = [
            text_of(client.get(address, headers={"accept-language": language}))
            for address in (LIST, f"{LIST}{item.pk}/change/")
        ]
        assert not [text for text in texts if not any(text in page for page in pages)], language


def test_no_label_and_no_help_text_of_the_forms_is_left_in_english():
    client = signed_in(person("boss", superuser=True))
    item = opened()
    addresses = [
        f"/admin/delayedq_desk/{model}/add/" for model in ("deskqueue", "automation", "skill", "replytemplate")
    ]
    for address in (*addresses, f"{LIST}{item.pk}/change/"):
        page = client.get(address, headers={"accept-language": "he"}).content.decode()
        shown = r'<label[^>]*>([^<]+)|<option value="[a-z]+"[^>]*>([^<]+)|<div class="help"[^>]*>\s*<div>([^<]+)'
        texts = [re.sub(r'"\w+"', "", "".join(text)) for text in re.findall(shown, page)]  # a key of the keyboard
        assert len(texts) > 2
        assert not [text for text in texts if re.search("[a-z]", text)], address
