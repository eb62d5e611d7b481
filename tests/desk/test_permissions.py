"""Who may do what by POST: every verb by every role, and what each verb says of bad input."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from django.contrib.auth.models import Group, Permission
from django.test import Client
from django.utils import timezone

from delayedq.desk import views
from delayedq.desk.models import Automation, Comment, DeskQueue, Item, State
from delayedq.desk.signals import item_changed
from delayedq.desk.typed import WITH_FORM
from delayedq.models import Edit, FinishedMessage
from delayedq.testing import run_due
from tests.desk.given import ALL, QUEUE, opened, person, refund, reviewed

pytestmark = [pytest.mark.usefixtures("store"), pytest.mark.urls("tests.desk.urls")]
#: Permissions are the same on each database, and there are many cases.
sqlite = pytest.mark.parametrize("alias", ["sqlite"], indirect=True)

DESK, ADMIN = "/desk/", "/admin/delayedq_desk/item/desk/"
#: By name: the permissions. The holder has taken the item, and has decided it where it is pending review.
ROLES = {
    "holder": ("view", "take"),
    "colleague": ("view", "take"),
    "reviewer": ("view", "review"),
    "both": ("view", "take", "review"),
    "lead": ALL,
    "viewer": ("view",),
    "blind": ("take", "assign", "review"),
    "nobody": (),
    "outsider": ALL,
}
#: By verb: the state in which it is tried, and the roles that may.
MAY = {
    "take": (State.WAITING, {"holder", "colleague", "both", "lead"}),
    "unassign": (State.ASSIGNED, {"holder", "lead"}),
    "renew": (State.ASSIGNED, {"holder"}),
    "postpone": (State.ASSIGNED, {"holder"}),
    "finish": (State.ASSIGNED, {"holder"}),
    "assign": (State.ASSIGNED, {"lead"}),
    "approve": (State.REVIEW, {"reviewer", "both", "lead"}),
    "send_back": (State.REVIEW, {"reviewer", "both", "lead"}),
    "comment": (State.ASSIGNED, {"holder", "colleague", "reviewer", "both", "lead", "viewer"}),
}


def signed_in(user):
    client = Client()
    client.force_login(user)
    return client


@pytest.fixture
def people():
    """One of each role; only the outsider is in none of the groups of the queue."""
    group = Group.objects.create(name="office")
    DeskQueue.objects.create(queue=QUEUE).groups.add(group)
    users = {name: person(name, *verbs) for name, verbs in ROLES.items()}
    group.user_set.add(*(user for name, user in users.items() if name != "outsider"))
    return users


def given(verb, people):
    """An item in the state in which this verb is tried."""
    state, _ = MAY[verb]
    item = opened(reviewed if state == State.REVIEW else refund)
    if state != State.WAITING:
        item.take(people["holder"])
    if state == State.REVIEW:
        item.finish({"amount": 1, "paid": True}, by=people["holder"])
    return item


def values(verb, people, item):
    """Good input for this verb."""
    return {
        "postpone": {"until": f"{timezone.now() + timedelta(days=30):%Y-%m-%dT%H:%M}", "why": "later"},
        "finish": {"amount": 70},
        "assign": {"user": people["colleague"].pk, "dq-assignment": item.assignment},
        "send_back": {"why": "the amount"},
        "comment": {"text": "hello"},
    }.get(verb, {})


def seen():
    return Item.objects.values().get(), Comment.objects.count()


@sqlite
@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("verb", MAY)
def test_each_verb_is_for_those_who_may(people, verb, role):
    item = given(verb, people)
    before = seen()
    answer = signed_in(people[role]).post(f"{DESK}{item.pk}/{verb}/", values(verb, people, item))
    assert (seen() != before) == (role in MAY[verb][1])
    assert (answer.status_code == 404) == (role in {"blind", "nobody", "outsider"})


@sqlite
@pytest.mark.parametrize("verb", MAY)
def test_the_admin_refuses_who_is_no_staff_and_who_is_not_signed_in(people, verb):
    item, holder = given(verb, people), people["holder"]
    before = seen()
    holder.is_staff = False
    holder.save()
    for client in (Client(), signed_in(holder)):
        answer = client.post(f"{ADMIN}{item.pk}/{verb}/", values(verb, people, item))
        if verb in WITH_FORM:  # it keeps what was typed
            assert (answer.status_code, "/admin/login/" in answer.content.decode()) == (403, True)
        else:
            assert "/admin/login/" in answer.headers["Location"]
    assert Client().post(f"{DESK}{item.pk}/{verb}/").status_code == (403 if verb in WITH_FORM else 302)
    strict = Client(enforce_csrf_checks=True)
    strict.force_login(people["lead"])
    assert strict.post(f"{DESK}{item.pk}/{verb}/", values(verb, people, item)).status_code == 403
    assert signed_in(people["lead"]).get(f"{DESK}{item.pk}/{verb}/").status_code == 405
    assert seen() == before


def test_nobody_reviews_their_own(people):
    item = opened(reviewed)
    item.take(people["both"])
    item.finish({"amount": 1, "paid": True}, by=people["both"])
    before, client = seen(), signed_in(people["both"])
    for verb in ("approve", "send_back"):
        answer = client.post(f"{DESK}{item.pk}/{verb}/", {"why": "I was wrong"}, follow=True)
        assert "Nobody reviews their own decisions." in answer.content.decode()
        assert seen() == before
    assert "approve" not in client.get(f"{DESK}{item.pk}/").content.decode()


@pytest.mark.parametrize(
    ("verb", "bad", "field", "said"),
    [
        ("finish", {"amount": "much"}, "amount", "Enter a whole number."),
        ("finish", {}, "amount", "This field is required."),
        ("postpone", {"until": "2001-01-01T10:00"}, "until", "A follow-up date lies in the future"),
        ("postpone", {"until": "soon"}, "until", "Enter a valid date/time."),
        ("assign", {"user": "999999"}, "user", "Select a valid choice"),
        ("assign", {"user": "viewer"}, "user", "viewer may not work on the queue refunds."),
        ("assign", {"user": "outsider"}, "user", "outsider may not work on the queue refunds."),
        ("send_back", {"why": ""}, "why", "This field is required."),
        ("comment", {"text": ""}, "text", "Write something, or add a file."),
    ],
)
def test_bad_input_is_said_at_its_field_and_changes_nothing(people, verb, bad, field, said):
    item = given(verb, people)
    if verb in {"finish", "postpone"}:
        item.assign(people["lead"])
    if bad.get("user") in people:
        bad = {"user": people[bad["user"]].pk, "dq-assignment": item.assignment}
    before = seen()
    answer = signed_in(people["lead"]).post(f"{DESK}{item.pk}/{verb}/", bad)
    assert answer.status_code == 422
    form = answer.context["forms"][verb]
    assert said in str(form.errors[field])
    page = answer.content.decode()
    assert f'id="{form[field].auto_id}_error"' in page
    (shown,) = re.findall(rf'<(?:input|select|textarea) [^>]*id="{form[field].auto_id}"[^>]*>', page)
    described = re.search(r'aria-describedby="([^"]*)"', shown)
    assert described is not None, shown
    assert described[1].split()[-1] == f"{form[field].auto_id}_error"
    assert seen() == before


def test_what_others_hold_is_neither_finished_nor_postponed_and_the_reader_is_told_who_holds_it(people):
    item = given("finish", people)
    before = seen()
    for verb in ("finish", "postpone"):
        answer = signed_in(people["colleague"]).post(f"{DESK}{item.pk}/{verb}/", values(verb, people, item))
        assert answer.status_code == 422
        assert "Taken by holder" in answer.content.decode()
    assert seen() == before


def test_an_assignment_holds_only_from_the_holder_that_the_page_has_shown(people):
    item = given("assign", people)
    shown = values("assign", people, item)
    item.unassign()
    item.take(people["both"])
    before = seen()
    for stale in (shown, {"user": shown["user"]}, {**shown, "dq-assignment": "x"}):
        answer = signed_in(people["lead"]).post(f"{DESK}{item.pk}/assign/", stale)
        assert answer.status_code == 422
        assert "Taken by both" in answer.content.decode()
    assert seen() == before


def test_unknown_verbs_items_and_forms_are_not_found(people):
    item = given("finish", people)
    client = signed_in(people["lead"])
    for path in (f"{item.pk}/delete/", f"{item.pk}/save/", f"{item.pk}/held_by/", "999999/take/"):
        assert client.post(f"{DESK}{path}").status_code == 404


@sqlite
@pytest.mark.parametrize("role", ["lead", "viewer", "outsider", "nobody"])
def test_who_sets_the_mode_needs_the_permission_and_a_queue_that_they_see(people, role):
    user = people[role]
    if role != "viewer":
        user.user_permissions.add(Permission.objects.get(codename="change_automation"))
    client = signed_in(user)
    client.post(f"{DESK}automation/mode/", {"kind": refund.module_path, "mode": "automatic"})
    assert Automation.objects.filter(mode="automatic").exists() == (role == "lead")
    if role != "lead":
        return
    for kind, mode in ((refund.module_path, "wild"), ("no.such.task", "shadow"), ("", "")):
        client.post(f"{DESK}automation/mode/", {"kind": kind, "mode": mode})
        assert Automation.objects.get().mode == "automatic"
    page = client.post(f"{DESK}automation/mode/", {"kind": refund.module_path, "mode": "people"}, follow=True)
    assert "From now on: people." in page.content.decode()
    client.post(f"{DESK}automation/mode/", {"kind": refund.module_path, "mode": ""})
    assert not Automation.objects.exists()


def test_who_sets_the_mode_is_in_the_history(people):
    """The button, the one that goes back to the code, and one that was refused."""
    lead = people["lead"]
    lead.user_permissions.add(Permission.objects.get(codename="change_automation"))
    client = signed_in(lead)
    for mode in ("shadow", "automatic", "wild", ""):
        client.post(f"{DESK}automation/mode/", {"kind": refund.module_path, "mode": mode})
    signed_in(people["viewer"]).post(f"{DESK}automation/mode/", {"kind": refund.module_path, "mode": "automatic"})
    run_due()
    ended = FinishedMessage.objects.filter(kind="delayedq.desk.tasks.mode_set", queue=QUEUE).order_by("id")
    said = [row.kwargs for row in ended]
    assert [(one["before"], one["mode"]) for one in said] == [
        ("people", "shadow"), ("shadow", "automatic"), ("automatic", "people")
    ]  # fmt: skip
    assert {(one["by"], one["task"]) for one in said} == {("lead", refund.module_path)}


def test_who_sets_the_mode_is_among_the_edits_with_the_reason(people):
    """The button, the one that goes back to the code, one that changes nothing, and one that was refused."""
    lead = people["lead"]
    lead.user_permissions.add(Permission.objects.get(codename="change_automation"))
    client, kind = signed_in(lead), refund.module_path
    for mode, why in (("shadow", " the handler\0 is new "), ("shadow", "again"), ("wild", "no"), ("", "x" * 501)):
        client.post(f"{DESK}automation/mode/", {"kind": kind, "mode": mode, "why": why})
    assert [(edit.description, edit.made_by, edit.why) for edit in Edit.objects.order_by("id")] == [
        (f"Set the mode of {kind}: shadow, before: as in the code", "lead", "the handler is new"),
        (f"Set the mode of {kind}: as in the code, before: shadow", "lead", "x" * 500),
    ]
    page = signed_in(person("boss", superuser=True)).get("/admin/delayedq/edit/", {"q": "refund"}).content.decode()
    assert f"Set the mode of {kind}: shadow" in page


@sqlite
def test_the_reason_of_a_mode_that_was_refused_stays_where_it_was_typed(people):
    lead = people["lead"]
    lead.user_permissions.add(Permission.objects.get(codename="change_automation"))
    sent = {"kind": reviewed.module_path, "mode": "wild", "why": "the <handler>"}
    page = signed_in(lead).post(f"{DESK}automation/mode/", sent)
    assert page.status_code == 422
    form = page.content.decode().partition(f'value="{reviewed.module_path}"')[2].partition("</form>")[0]
    assert 'value="the &lt;handler&gt;"' in form
    assert page.content.decode().count("the &lt;handler&gt;") == 1


@pytest.mark.parametrize("way", ["round_robin", "least_loaded"])
def test_a_lead_deals_what_waits_to_those_who_work_on_the_queue(people, monkeypatch, way):
    monkeypatch.setattr(views, "DEALT_AT_ONCE", 3)
    workers = {"holder", "colleague", "both", "lead"}
    people["blind"].groups.clear()
    for _ in range(4):
        opened()
    heard, client = [], signed_in(people["lead"])

    def hear(verb, by, **_):
        heard.append((verb, by))

    item_changed.connect(hear)
    try:
        page = client.post(f"{DESK}team/deal/", {"queue": QUEUE, "deal": way}, follow=True)
    finally:
        item_changed.disconnect(hear)
    assert page.redirect_chain == [(f"{DESK}team/?queue={QUEUE}", 302)]
    assert "3 items were assigned." in page.content.decode()
    assert heard == [("assign", people["lead"])] * 3
    held = Item.objects.assigned()
    assert len({item.holder for item in held}) == 3
    assert {item.holder.username for item in held} < workers
    client.post(f"{DESK}team/deal/", {"queue": QUEUE, "deal": way})
    assert {item.holder.username for item in held.all()} == workers


@sqlite
@pytest.mark.parametrize("role", ROLES)
def test_who_may_assign_may_deal(people, role):
    opened()
    client = signed_in(people[role])
    page = client.get(f"{DESK}team/", {"queue": QUEUE}).content.decode()
    assert ("In turn" in page) == (role == "lead")
    assert "In turn" not in client.get(f"{DESK}team/").content.decode()
    assert client.get(f"{DESK}team/deal/").status_code == 405
    answer = client.post(f"{DESK}team/deal/", {"queue": QUEUE, "deal": "round_robin"}, follow=True)
    assert Item.objects.assigned().exists() == (role == "lead")
    assert (answer.status_code == 404) == (role in {"blind", "nobody", "outsider"})
    is_told = f"{role} may not assign items of the queue refunds." in answer.content.decode()
    assert is_told == (role not in {"lead", "blind", "nobody", "outsider"})


def test_nothing_is_dealt_in_an_unknown_way_or_queue(people):
    opened()
    client = signed_in(people["lead"])
    for bad in ({"queue": QUEUE, "deal": "by lot"}, {"queue": QUEUE}, {"queue": "\0", "deal": "round_robin"}, {}):
        answer = client.post(f"{DESK}team/deal/", bad)
        assert answer.status_code == 302
    assert not Item.objects.assigned().exists()


def test_take_next_takes_nothing_for_who_may_not(people):
    opened()
    for role in ("viewer", "reviewer", "nobody", "outsider"):
        signed_in(people[role]).post(f"{DESK}next/", {"queue": QUEUE})
    assert Item.objects.get().state == State.WAITING
    answer = signed_in(people["colleague"]).post(f"{DESK}next/", {"queue": "no such queue"}, follow=True)
    assert "Nothing waits for you there." in answer.content.decode()


def test_a_postponed_item_waits_again_when_its_date_is_past(people):
    item = given("postpone", people)
    item.postpone(timezone.now() + timedelta(hours=1), by=people["holder"])
    client = signed_in(people["colleague"])
    client.post(f"{DESK}{item.pk}/take/")
    assert Item.objects.get().state == State.POSTPONED
    Item.objects.update(until=timezone.now() - timedelta(seconds=1))
    client.post(f"{DESK}{item.pk}/take/")
    assert Item.objects.get().holder == people["colleague"]
