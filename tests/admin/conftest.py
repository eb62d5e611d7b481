"""Fixtures: clients of a superuser and of users with few permissions."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client


@pytest.fixture
def admin_site_urls(settings):
    """URLs of the admin alone, without the example project."""
    settings.ROOT_URLCONF = "tests.admin.urls"


@pytest.fixture
def operator(alias, admin_site_urls):
    """A superuser's client, with CSRF checks."""
    return _client(User.objects.create_superuser("ann", password="secret"))


@pytest.fixture
def member(alias, admin_site_urls):
    """Makes a client whose user may view messages and has the named permissions, and no others."""

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
