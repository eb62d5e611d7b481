"""Reply templates: inserted into the form by whoever decides, without scripts, and managed in the admin."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest
from django import forms
from django.contrib.auth.models import Permission
from django.db import connections

from delayedq.desk import desk_task
from delayedq.desk.models import Item, ReplyTemplate, State
from delayedq.desk.replies import offered
from tests.desk.given import ALL, QUEUE, opened, person, refund, sure
from tests.desk.test_pages import signed_in, text_of

pytestmark = [pytest.mark.usefixtures("store"), pytest.mark.urls("tests.desk.urls")]
TEMPLATES = "/admin/delayedq_desk/replytemplate/"
GERMAN, HEBREW = (
    "Schöne Grüße, <b>Ihr</b> Team",
    "\u05e9\u05dc\u05d5\u05dd, \u05d4\u05db\u05e1\u05e3 \u05d1\u05d3\u05e8\u05da",
)


class LetterForm(forms.Form):
    amount = forms.IntegerField(min_value=0)
    paid = forms.BooleanField(required=False)
    subject = forms.CharField(max_length=40, required=False)
    letter = forms.CharField(widget=forms.Textarea, required=False)
    extra = forms.JSONField(required=False)
    proof = forms.FileField(required=False)


@desk_task(queue_name=QUEUE, form=LetterForm, due_in=timedelta(hours=8))
def answered(order): ...


def template(text=GERMAN, field="letter", **more):
    given = {"kind": answered.module_path, "name": text, **more}
    return ReplyTemplate.objects.create(field=field, text=text, **given)


def held(ann, task=answered):
    item = opened(task)
    item.take(ann)
    return item


def insert(client, item, chosen, **typed):
    sent = {"dq-assignment": item.assignment, "dq-insert": "1", "dq-template": chosen, **typed}
    return client.post(f"/desk/{item.pk}/finish/", sent)


def values(page):
    form = page.context["forms"]["finish"]
    return {name: form[name].value() for name in form.fields}


@pytest.mark.parametrize("text", [GERMAN, HEBREW])
def test_a_template_is_put_into_its_field_beside_what_was_typed(text):
    ann, one = person("ann", *ALL), template(text)
    item, client = held(ann), signed_in(ann)
    page = client.get(f"/desk/{item.pk}/")
    assert f">{text.replace('<', '&lt;').replace('>', '&gt;')}</option>" in text_of(page)
    page = insert(client, item, one.pk, amount="x7", paid="on", extra='{"a": 1}')
    assert page.status_code == 200
    assert values(page) == {
        "amount": "x7", "paid": True, "subject": None, "letter": text, "extra": '{"a": 1}', "proof": None
    }  # fmt: skip
    assert page.context["forms"]["finish"].errors == {}
    assert Item.objects.get().state == State.ASSIGNED
    client.post(f"/desk/{item.pk}/finish/", {"dq-assignment": item.assignment, "amount": 7, "letter": text})
    assert json.loads(Item.objects.get().decision)["letter"] == text


def test_a_second_template_stands_behind_the_first():
    ann, one, two = person("ann", *ALL), template("Dear customer,"), template("Yours, ann")
    topic = template("Refund", field="subject")
    item, client = held(ann), signed_in(ann)
    typed = {name: value or "" for name, value in values(insert(client, item, one.pk)).items() if name != "paid"}
    page = insert(client, item, two.pk, **typed)
    assert values(page)["letter"] == "Dear customer,\n\nYours, ann"
    page = insert(client, item, topic.pk, subject="Re:", extra="no JSON [")
    assert (values(page)["subject"], values(page)["extra"]) == ("Re: Refund", "no JSON [")


@pytest.mark.parametrize("chosen", ["", "x", "-1", "9" * 40, "\0"])
def test_what_is_no_template_is_refused_at_its_field_and_what_was_typed_stays(chosen):
    ann = person("ann", *ALL)
    template()
    item = held(ann)
    page = insert(signed_in(ann), item, chosen, letter="Dear all")
    assert page.status_code == 422
    assert page.context["replies"].errors.keys() == {"template"}
    assert values(page)["letter"] == "Dear all"


def test_a_template_of_another_task_and_one_whose_field_is_gone_are_refused():
    ann = person("ann", *ALL)
    other, gone = template(kind=refund.module_path), template(field="greeting")
    item, client = held(ann), signed_in(ann)
    for one in (other, gone):
        page = insert(client, item, one.pk)
        assert page.status_code == 422
        assert page.context["replies"].errors.keys() == {"template"}
    assert "It has: subject, letter." in text_of(page)


def test_who_has_lost_the_item_reads_what_they_had_typed():
    ann, one = person("ann", *ALL), template()
    item = held(ann)
    item.assign(person("bob", *ALL))
    page = text_of(insert(signed_in(ann), item, one.pk, letter="Dear all"))
    assert "Not saved: what you have typed" in page
    assert "Dear all" in page
    assert "dq-insert" not in page


def test_templates_are_offered_only_where_the_task_has_some_and_to_the_holder():
    ann, bob = person("ann", *ALL), person("bob", *ALL)
    template()
    mine, other = held(ann), held(ann, refund)
    assert "dq-insert" in text_of(signed_in(ann).get(f"/desk/{mine.pk}/"))
    assert "dq-insert" not in text_of(signed_in(ann).get(f"/desk/{other.pk}/"))
    assert "dq-insert" not in text_of(signed_in(bob).get(f"/desk/{mine.pk}/"))


def manager(*names):
    user = person("lea", "view")
    user.user_permissions.add(*Permission.objects.filter(codename__in=[f"{name}_replytemplate" for name in names]))
    return signed_in(user)


def test_templates_are_managed_by_who_has_the_permission():
    given = {"kind": answered.module_path, "field": "letter", "name": "thanks", "text": HEBREW}
    assert signed_in(person("ann", *ALL)).post(f"{TEMPLATES}add/", given).status_code == 403
    assert manager("add").post(f"{TEMPLATES}add/", given).status_code == 302
    assert ReplyTemplate.objects.get().text == HEBREW


@pytest.mark.parametrize(
    ("wrong", "field", "said"),
    [
        ({"kind": "no.such.task"}, "kind", "not one of the available choices"),
        ({"kind": sure.module_path}, "field", "has no text field"),
        ({"field": "amount"}, "field", "It has: subject, letter."),
        ({"field": "extra"}, "field", "It has: subject, letter."),
        ({"field": "subject", "text": "x" * 41}, "text", "at most 40 characters"),
        ({"text": ""}, "text", "required"),
        ({"name": "a\0b"}, "name", "Null characters"),
        ({"name": "taken"}, None, "already exists"),
    ],
)
def test_what_no_form_could_take_is_refused_at_its_field(wrong, field, said):
    template(name="taken")
    given = {"kind": answered.module_path, "field": "letter", "name": "thanks", "text": "Thank you"}
    page = manager("add").post(f"{TEMPLATES}add/", given | wrong)
    errors = page.context["adminform"].form.errors
    assert list(errors) == [field or "__all__"]
    assert said in str(errors)
    assert ReplyTemplate.objects.count() == 1


def test_names_compare_exactly():
    template(name="Gruss"), template(name="gruss"), template(name="gruß ")
    assert ReplyTemplate.objects.filter(name="gruß ").count() == 1


def test_whoever_does_not_hold_the_item_pays_nothing_for_templates(django_assert_max_num_queries):
    """One statement for its holder."""
    ann, bob = person("ann", *ALL), person("bob", *ALL)
    item = held(ann)
    connection = connections[item._state.db]
    for user, number in ((ann, 1), (bob, 0)):
        client = signed_in(user)
        with django_assert_max_num_queries(40, connection=connection) as asked:
            client.get(f"/desk/{item.pk}/")
        assert sum("replytemplate" in one["sql"] for one in asked.captured_queries) == number


def test_templates_of_the_same_name_are_told_apart_by_their_fields():
    for field, name in (("letter", "refused"), ("extra", "refused"), ("letter", "granted")):
        template(field=field, name=name)
    choices = dict(offered(answered.module_path).fields["template"].choices)
    assert sorted(choices.values()) == ["-", "granted", "refused (extra)", "refused (letter)"]
