"""Desk tasks, and people."""

from __future__ import annotations

from datetime import timedelta

from django import forms
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission

from delayedq import task
from delayedq.desk import NeedsPerson, Proposal, Share, desk_task
from delayedq.desk.models import Item
from delayedq.testing import run_due

QUEUE = "refunds"
ALL = ("view", "take", "assign", "review")
PAID = {"amount": 100, "paid": True}


class RefundForm(forms.Form):
    amount = forms.IntegerField(min_value=0)
    paid = forms.BooleanField(required=False)


class EurosForm(forms.Form):
    """Its result has other names than its fields, and converts."""

    euros = forms.IntegerField()

    def clean_euros(self):
        return self.cleaned_data["euros"] * 100

    def result(self):
        return {"cents": self.cleaned_data["euros"]}


class HandOverForm(forms.Form):
    """Its fields have names of what the pages know besides."""

    assignment = forms.CharField()
    then = forms.CharField()


@task(queue_name=QUEUE)
def told(message_id):
    return message_id


@desk_task(queue_name=QUEUE, form=RefundForm, due_in=timedelta(hours=8), hold=timedelta(hours=2), on_finish=told)
def refund(order):
    """The handler pays orders of up to 100."""
    if order > 100:
        raise NeedsPerson(f"{order} is above 100")
    return {"amount": order, "paid": True}


@desk_task(queue_name=QUEUE, form=RefundForm, review=Share(1.0))
def reviewed(order):
    return {"amount": order, "paid": True}


@desk_task(queue_name=QUEUE, form=HandOverForm)
def hand_over(order): ...


@desk_task(queue_name=QUEUE, review=Share(0.0, below=0.9))
def sure(order, confidence):
    return Proposal(order, confidence)


@desk_task(queue_name=QUEUE, max_attempts=2, backoff=timedelta(minutes=1))
def broken(order):
    raise ValueError(f"no such order: {order}")


@desk_task(queue_name=QUEUE, skill=lambda order: "french" if order > 10 else "", weight=3)
def skilled(order):
    return order


@desk_task(queue_name=QUEUE, required=0.95, blind=0.1, mode="automatic")
def braked(order):
    return order


@desk_task(queue_name=QUEUE, form=EurosForm)
def euros(order):
    return {"cents": order}


def person(name, *verbs, superuser=False):
    user = get_user_model().objects.create(username=name, is_staff=True, is_superuser=superuser)
    names = [f"{verb}_item" for verb in verbs]
    user.user_permissions.set(Permission.objects.filter(codename__in=names))
    return user


def opened(desk=refund, *args, **options):
    """The item of a message that was due, as a worker opens it."""
    scheduled = desk.using(**options).enqueue(*(args or (100,)))
    run_due(raise_failures=False)
    return Item.objects.get(message_id=scheduled.id)
