from __future__ import annotations

import json
from datetime import timedelta

import pytest
from django.contrib.auth.models import Group, User
from django.db import models
from django.test import RequestFactory
from django.utils.functional import SimpleLazyObject
from django.utils.safestring import mark_safe
from django.utils.translation import gettext_lazy

from delayedq.compat import TaskResultStatus
from delayedq.core.serialization import dump_call, dumps, load_call, loads
from delayedq.exceptions import ArgumentsMismatch, NotStorable, ReferenceGone
from delayedq.testing import run_due
from delayedq.views import status
from tests.app import tasks
from tests.app.models import Mark
from tests.router import ChosenDatabase


class Remark(Mark):
    class Meta:
        proxy = True
        app_label = "tests_app"


class Bag(models.Model):
    id = models.UUIDField(primary_key=True)

    class Meta:
        managed = False
        app_label = "tests_app"

    def __str__(self):
        return str(self.id)


class Seat(models.Model):
    pk = models.CompositePrimaryKey("flight", "row")
    flight = models.CharField(max_length=10)
    row = models.IntegerField()

    class Meta:
        managed = False
        app_label = "tests_app"

    def __str__(self):
        return f"{self.flight}/{self.row}"


def stored(reference):
    return json.dumps({"$": "model", "v": reference})


@pytest.fixture
def group(db):
    return Group.objects.create(name="crew")


@pytest.mark.django_db
def test_an_instance_is_stored_as_a_reference(group):
    assert json.loads(dumps(group)) == {"$": "model", "v": {"model": "auth.group", "pk": group.pk}}


def test_an_instance_comes_back_as_its_row_is_then(group):
    text = dump_call((group,), {"others": [group]})
    Group.objects.update(name="ground crew")
    (first,), kwargs = load_call(text)
    assert first == kwargs["others"][0] == group
    assert first.name == "ground crew"


def test_an_instance_of_another_database_is_stored_with_its_alias(group):
    group._state.db = "postgresql"
    assert json.loads(dumps(group))["v"]["db"] == "postgresql"
    group._state.db = "default"
    assert "db" not in json.loads(dumps(group))["v"]


def test_an_instance_is_loaded_from_its_own_database_whatever_a_router_says(alias, monkeypatch):
    group = Group.objects.create(name="crew")
    with monkeypatch.context() as patch:  # undone before the fixture `alias` resets it
        patch.setattr(ChosenDatabase, "alias", "default")
        back = loads(dumps(group))
        assert back == group
        assert back._state.db == alias


def test_deferred_lazy_and_proxied_instances_are_references_too(db):
    user = User.objects.create(username="ann")
    assert loads(dumps(User.objects.only("pk").get())) == user
    assert loads(dumps(SimpleLazyObject(User.objects.get))) == user
    Mark.objects.create(name="late")
    assert type(loads(dumps(Remark.objects.get()))) is Remark


def test_a_composite_primary_key_is_stored_in_full():
    seat = Seat.from_db("default", ["flight", "row"], ["UA1545", 7])
    assert json.loads(dumps(seat))["v"] == {"model": "tests_app.seat", "pk": {"$": "tuple", "v": ["UA1545", 7]}}
    seat.row = None
    with pytest.raises(NotStorable, match="save it first"):
        dumps(seat)


@pytest.mark.parametrize("instance", [Group(), Group(pk=7), Group(name="crew")], ids=["new", "with a pk", "without"])
def test_an_unsaved_instance_is_refused_by_name(instance):
    with pytest.raises(NotStorable, match=r"^argument 'to': <Group> can't be stored: .*save it first"):
        dump_call((instance,), {}, ["to"])


def test_a_deleted_instance_is_refused(group):
    group.delete()
    with pytest.raises(NotStorable, match="<Group> can't be stored"):
        dumps(group)


def test_a_row_that_is_gone_is_named(group):
    text, pk = dumps([group]), group.pk
    group.delete()
    with pytest.raises(ReferenceGone, match=rf"^auth\.Group {pk} was deleted"):
        loads(text)


@pytest.mark.parametrize(
    ("reference", "reason"),
    [
        ({"model": "flights.zeppelin", "pk": 1}, "unknown model, 'flights.zeppelin'"),
        ({"model": "auth.zeppelin", "pk": 1}, "unknown model, 'auth.zeppelin'"),
        ({"model": "group", "pk": 1}, "malformed model"),
        ({"model": 7, "pk": 1}, "malformed model"),
        ({"model": "auth.group"}, "malformed model"),
        ({"model": "auth.group", "pk": "crew"}, "malformed model"),
        ({"model": "tests_app.bag", "pk": "crew"}, r"refers to tests_app\.Bag 'crew': .*is not a valid UUID"),
        ({"model": "auth.group", "pk": [1]}, "malformed model"),
        ({"model": "auth.group", "pk": 1, "db": "nowhere"}, "unknown database: 'nowhere'"),
        ({"model": "auth.group", "pk": 1, "db": ["default"]}, "unknown database"),
        ("auth.group", "malformed model"),
    ],
)
def test_a_reference_that_leads_nowhere_is_a_mismatch(db, reference, reason):
    with pytest.raises(ArgumentsMismatch, match=reason):
        loads(stored(reference))


def test_a_safe_text_is_a_text_and_a_lazy_one_is_refused():
    assert type(loads(dumps(mark_safe("<b>")))) is str
    with pytest.raises(NotStorable, match="can't be stored"):
        dumps(gettext_lazy("Hello"))


def test_a_returned_instance_that_is_gone_fails_when_its_value_is_asked_for(alias):
    made = tasks.play.enqueue("make")
    tasks.bodies["make"] = lambda: Mark.objects.create(name="made")
    run_due()
    made.refresh()
    assert made.return_value == Mark.objects.get()
    Mark.objects.all().delete()
    assert made.wait(timedelta(0)) is made
    assert (made.status, made.outcome) == (TaskResultStatus.SUCCESSFUL, "succeeded")
    assert status(RequestFactory().get("/"), made.signed_id).status_code == 200
    with pytest.raises(ReferenceGone, match="was deleted"):
        made.return_value  # noqa: B018
