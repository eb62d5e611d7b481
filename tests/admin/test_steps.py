"""The page of a message shows its steps, and their results only to who may see them."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.contrib.auth.models import Permission, User
from django.utils import timezone

from delayedq.models import FinishedMessage, RecordedStep
from delayedq.testing import run_due
from tests.app import tasks

HOUR = timedelta(hours=1)
SECRET = "<b>card 4711</b>"


def page_of(client, *, ended):
    scheduled = tasks.remind.enqueue(7) if ended else tasks.remind.schedule_in(HOUR, 7)
    id_ = int(scheduled.id)
    RecordedStep.objects.create(
        message_id=id_, generation=0, name="<i>charge", result=f'"{SECRET}"', recorded_at=timezone.now()
    )
    run_due()
    assert FinishedMessage.objects.exists() is ended
    return client.get(f"/admin/delayedq/{'finishedmessage' if ended else 'message'}/{id_}/change/").content.decode()


@pytest.mark.parametrize("ended", [False, True])
def test_the_page_of_a_message_shows_its_steps(alias, client, ended):
    client.force_login(User.objects.create_superuser("boss"))
    page = page_of(client, ended=ended)
    assert "&lt;i&gt;charge" in page
    assert "&lt;b&gt;card 4711" in page
    assert "<i>charge" not in page
    assert SECRET not in page


@pytest.mark.parametrize("ended", [False, True])
def test_without_the_permission_no_result_is_shown(alias, client, ended):
    reader = User.objects.create_user("reader", is_staff=True)
    reader.user_permissions.add(*Permission.objects.filter(codename__in=["view_message", "view_finishedmessage"]))
    client.force_login(reader)
    page = page_of(client, ended=ended)
    assert "&lt;i&gt;charge" in page
    assert "4711" not in page
