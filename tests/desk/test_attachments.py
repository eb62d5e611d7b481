"""Files that people attach to an item: whoever may see the item may save them, and nobody else."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import Group
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client

from delayedq.desk.models import Comment, DeskQueue
from tests.desk.given import ALL, QUEUE, opened, person

pytestmark = [pytest.mark.usefixtures("store"), pytest.mark.urls("tests.desk.urls")]
SCRIPT = b"<script>alert(1)</script>"


@pytest.fixture
def item(settings, tmp_path):
    settings.MEDIA_ROOT = tmp_path
    return opened()


def signed_in(user):
    client = Client()
    client.force_login(user)
    return client


def attach(user, item, name="passport.html"):
    """The path of the file on the page of the item."""
    answer = signed_in(user).post(f"/desk/{item.pk}/comment/", {"attachment": SimpleUploadedFile(name, SCRIPT)})
    assert answer.status_code == 302
    return f"/desk/{item.pk}/file/{Comment.objects.latest('pk').pk}/"


def test_a_file_is_saved_and_not_shown(item):
    ann = person("ann", *ALL)
    path = attach(ann, item)
    assert f'<a href="{path}">passport.html</a>' in signed_in(ann).get(f"/desk/{item.pk}/").content.decode()

    answer = signed_in(ann).get(path)

    assert b"".join(answer.streaming_content) == SCRIPT
    assert answer["Content-Disposition"] == 'attachment; filename="passport.html"'
    assert (answer["Content-Type"], answer["X-Content-Type-Options"]) == ("application/octet-stream", "nosniff")


def test_nobody_guesses_where_it_is_stored(item):
    ann = person("ann", *ALL)
    for _ in range(2):
        attach(ann, item)
    first, second = (name.split("/") for name in Comment.objects.values_list("attachment", flat=True))
    assert (first[0], first[2]) == (second[0], second[2]) == ("desk", "passport.html")
    assert len(first[1]) == len(second[1]) == 22
    assert first[1] != second[1]


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("passport (2).pdf", "passport_2.pdf"),
        ("\N{PARTY POPPER}", "file"),
        ("...", "..."),
        ("x." + "y" * 90, "y" * 70),
        ("\N{CJK UNIFIED IDEOGRAPH-20000}" * 90, "\N{CJK UNIFIED IDEOGRAPH-20000}" * 17),
        ("\N{LATIN SMALL LETTER E WITH ACUTE}" * 90 + ".pdf", "\N{LATIN SMALL LETTER E WITH ACUTE}" * 33 + ".pdf"),
    ],
    ids=["usual", "of a sign", "of dots", "of a long ending", "of four bytes each", "of two bytes each"],
)
def test_a_file_of_any_name_is_stored(item, name, kept):
    ann = person("ann", *ALL)
    path = attach(ann, item, name)
    assert Comment.objects.get().attachment.name.rpartition("/")[2] == kept
    assert b"".join(signed_in(ann).get(path).streaming_content) == SCRIPT


def test_a_file_whose_name_is_too_long_is_refused_at_its_field(item):
    answer = signed_in(person("ann", *ALL)).post(
        f"/desk/{item.pk}/comment/", {"attachment": SimpleUploadedFile("x" * 101, SCRIPT)}
    )
    assert answer.status_code == 422
    assert "at most 100 characters" in answer.content.decode()


def test_who_may_not_see_the_item_gets_no_file(item):
    path = attach(person("ann", *ALL), item)
    DeskQueue.objects.create(queue=QUEUE).groups.add(Group.objects.create(name="seniors"))
    assert signed_in(person("bob", *ALL)).get(path).status_code == 404
    assert signed_in(person("guest")).get(path).status_code == 404
    assert Client().get(path).status_code == 302


def test_a_file_is_found_by_its_own_item_alone(item, tmp_path):
    ann = person("ann", *ALL)
    path = attach(ann, item)
    other = opened()
    said = signed_in(ann).post(f"/desk/{other.pk}/comment/", {"text": "no file"})
    assert said.status_code == 302
    client = signed_in(ann)
    assert client.get(path.replace(f"/{item.pk}/", f"/{other.pk}/", 1)).status_code == 404
    assert client.get(f"/desk/{other.pk}/file/{Comment.objects.latest('pk').pk}/").status_code == 404
    (tmp_path / Comment.objects.earliest("pk").attachment.name).unlink()
    assert client.get(path).status_code == 404
