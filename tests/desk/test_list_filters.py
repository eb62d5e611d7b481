"""The list of items in the admin refuses what no database can store."""

from __future__ import annotations

import pytest
from django.test import Client

from tests.desk.given import opened, person

pytestmark = [
    pytest.mark.usefixtures("store"),
    pytest.mark.urls("tests.desk.urls"),
    pytest.mark.parametrize("alias", ["sqlite", "postgresql"], indirect=True),
]
LIST = "/admin/delayedq_desk/item/"


@pytest.mark.parametrize("name", ["state", "state__exact", "kind", "kind__exact", "queue", "mode__exact", "q", "key"])
def test_a_filter_with_nul_is_no_failure(name):
    opened()
    client = Client()
    client.force_login(person("ann", "view"))
    answer = client.get(LIST, {name: "a\0b"})
    assert answer.status_code in {200, 302, 400}
    assert f"{LIST}1/change/" not in answer.content.decode()
