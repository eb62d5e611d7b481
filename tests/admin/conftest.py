"""Somebody who uses the admin, and somebody who may only look."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client


@pytest.fixture
def admin_site_urls(settings):
    """The admin alone: the example project may be missing."""
    settings.ROOT_URLCONF = "tests.admin.urls"


@pytest.fixture
def operator(alias, admin_site_urls):
    """A client whose user may do everything, and whose requests are checked as a browser's are."""
    return _client(User.objects.create_superuser("ann", password="secret"))


@pytest.fixture
def member(alias, admin_site_urls):
    """Makes a client whose user may look at messages, and do what is named, and nothing else."""

    def make(*permissions, name="bob"):
        user = User.objects.create_user(name, password="secret", is_staff=True)
        names = {"view_message", "view_finishedmessage", "view_edit", *permissions}
        user.user_permissions.set(Permission.objects.filter(content_type__app_label="delayedq", codename__in=names))
        return _client(user)

    return make


def _client(user):
    client = Client()
    client.force_login(user, backend="django.contrib.auth.backends.ModelBackend")
    return client
