"""What the form of a decision begins with: data of the form, and not a result that it has made of them."""

from __future__ import annotations

import pytest
from django import forms
from django.test import Client

from delayedq.desk import desk_task
from delayedq.desk.models import Item
from tests.desk.given import ALL, QUEUE, euros, opened, person

pytestmark = pytest.mark.urls("tests.desk.urls")


class CentsForm(forms.Form):
    """Its result has a field of the same name, in another unit."""

    amount = forms.IntegerField()

    def result(self):
        return {"amount": self.cleaned_data["amount"] * 100}


class KnownForm(CentsForm):
    @staticmethod
    def from_result(result):
        return {"amount": result["amount"] // 100}


@desk_task(queue_name=QUEUE, form=CentsForm, mode="assisted")
def cents(amount):
    return {"amount": amount}


@desk_task(queue_name=QUEUE, form=KnownForm, mode="assisted")
def known(amount):
    return {"amount": amount} if amount else {}


@desk_task(queue_name=QUEUE, mode="assisted")
def formless(amount):
    return {"amount": amount}


@pytest.mark.parametrize(
    ("task", "amount", "value"),
    [(cents, 700, None), (euros, 700, None), (known, 700, 7), (known, 0, None)],
    ids=["results are no data", "nor of other names", "what the form says", "a form that fails"],
)
def test_a_form_begins_with_what_its_fields_take(store, task, amount, value):
    ann = person("ann", *ALL)
    item = opened(task, amount)
    item.take(ann)
    page = begun(ann, item)
    assert page["amount" if task is not euros else "euros"].value() == value


def test_without_a_form_the_result_is_filled_in(store):
    ann = person("ann", *ALL)
    item = opened(formless, 700)
    item.take(ann)
    assert begun(ann, item)["value"].value() == '{"amount": 700}'


def begun(ann, item):
    client = Client()
    client.force_login(ann)
    return client.get(f"/desk/{Item.objects.get(pk=item.pk).pk}/").context["forms"]["finish"]
