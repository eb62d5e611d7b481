"""The templates of a project in the place of those of the desk."""

from __future__ import annotations

import pytest
from django.test import Client

from tests.desk.given import ALL, opened, person, refund, reviewed

pytestmark = [
    pytest.mark.usefixtures("store"),
    pytest.mark.urls("tests.desk.urls"),
    pytest.mark.parametrize("alias", ["sqlite"], indirect=True),
]
BASE = """<html><body><h1>Our own shop: {{ title }}</h1>{% block page %}{% endblock %}</body></html>"""
ORDER = """<p>The order <b>{{ call.given.order.username }}</b>, by its own template</p>"""


@pytest.fixture
def templates(settings, tmp_path):
    """Where the project has its own."""
    settings.TEMPLATES = [{**settings.TEMPLATES[0], "DIRS": [tmp_path]}]
    folder = tmp_path / "delayedq" / "desk"
    (folder / "arguments").mkdir(parents=True)
    return folder


def page_of(user, address):
    client = Client()
    client.force_login(user)
    answer = client.get(address)
    assert answer.status_code == 200
    return answer.content.decode()


def test_a_base_template_of_the_project_is_that_of_all_pages_of_its_own_site(templates):
    (templates / "base.html").write_text(BASE)
    boss, item = person("boss", superuser=True), opened()
    for page in ("", "team/", "review/", "figures/", "automation/", f"{item.pk}/"):
        assert "<h1>Our own shop: " in page_of(boss, f"/desk/{page}")
    assert "Our own shop" not in page_of(boss, "/admin/delayedq_desk/item/desk/")
    assert "dq-desk-arguments" in page_of(boss, f"/desk/{item.pk}/")


def test_a_task_has_a_template_for_its_arguments_which_gets_the_rows_that_they_name(templates):
    (templates / "arguments" / f"{refund.module_path}.html").write_text(ORDER)
    ann = person("ann", *ALL)
    item, other = opened(refund, ann), opened(reviewed, ann)
    for root in ("/desk/", "/admin/delayedq_desk/item/desk/"):
        page = page_of(ann, f"{root}{item.pk}/")
        assert "<p>The order <b>ann</b>, by its own template</p>" in page
        assert "dq-desk-arguments" not in page
        assert "dq-desk-arguments" in page_of(ann, f"{root}{other.pk}/"), "of another task"


def test_the_page_of_an_item_may_be_replaced_too(templates):
    (templates / "item.html").write_text("{% extends frame %}{% block page %}<p>Ours: {{ item.pk }}</p>{% endblock %}")
    ann, item = person("ann", *ALL), opened()
    page = page_of(ann, f"/desk/{item.pk}/")
    assert f"<p>Ours: {item.pk}</p>" in page
    assert "<h1>" in page, "in the frame of the desk"
