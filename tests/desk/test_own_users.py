"""A project whose users are of a model of its own: without groups, without a column for who is active, and so on.

None of its queues is called "default".
"""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

MODELS = """
    from django.contrib.auth.base_user import AbstractBaseUser, BaseUserManager
    from django.contrib.auth.models import PermissionsMixin
    from django.db import models

    class Clerk(PermissionsMixin, AbstractBaseUser):  # without a column is_active
        USERNAME_FIELD = "email"
        email = models.EmailField(unique=True)
        clerks = BaseUserManager()

    class Boss(AbstractBaseUser):  # without permissions and groups
        USERNAME_FIELD = "email"
        email = models.EmailField(unique=True)
        bosses = BaseUserManager()

        def has_perm(self, name, obj=None):
            return True
"""
PROGRAM = """
    import sys

    import django
    from django.conf import settings
    from django.urls import include, path

    settings.configure(
        SECRET_KEY="none",
        AUTH_USER_MODEL="people." + sys.argv[1],
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "project.sqlite3"}},
        DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
        INSTALLED_APPS=[
            "django.contrib.auth", "django.contrib.contenttypes", "django.contrib.sessions", "django.contrib.messages",
            "delayedq", "delayedq.desk", "people",
        ],
        MIDDLEWARE=[
            "django.contrib.sessions.middleware.SessionMiddleware",
            "django.contrib.auth.middleware.AuthenticationMiddleware",
            "django.contrib.messages.middleware.MessageMiddleware",
        ],
        TEMPLATES=[{
            "BACKEND": "django.template.backends.django.DjangoTemplates",
            "APP_DIRS": True,
            "OPTIONS": {"context_processors": [
                "django.template.context_processors.request", "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]},
        }],
        STATIC_URL="static/",
        ROOT_URLCONF=__name__,
        ALLOWED_HOSTS=["testserver"],
        TASKS={"default": {"BACKEND": "delayedq.backend.DelayedQBackend", "QUEUES": ["cases"]}},
    )
    django.setup()
    urlpatterns = [path("desk/", include("delayedq.desk.urls"))]

    from django.contrib.auth import get_user_model
    from django.core.management import call_command
    from django.test import Client

    from delayedq import desk
    from delayedq.desk.models import DeskQueue, Item
    from delayedq.testing import run_due

    call_command("makemigrations", "people", verbosity=0)
    call_command("migrate", verbosity=0)

    from people.jobs import decide

    model = get_user_model()
    rights = {"is_superuser": True} if model.__name__ == "Clerk" else {}
    user = model._default_manager.create(email="ann@example.com", **rights)
    DeskQueue.objects.create(queue="cases", capacity=5)
    decide.enqueue()
    decide.enqueue()
    run_due()
    client = Client()
    client.force_login(user)
    first = Item.objects.first()
    for page in ("", "team/", "review/", "figures/", "automation/", f"{first.pk}/"):
        assert client.get(f"/desk/{page}").status_code == 200, page
    assert client.post(f"/desk/{first.pk}/take/").status_code == 302
    assert client.post(f"/desk/{first.pk}/finish/", {"value": "1"}).status_code == 302
    assert desk.distribute("cases") == 1
    assert list(Item.objects.order_by("pk").values_list("state", "holder")) == [("done", None), ("assigned", user.pk)]
    print("all is well")
"""
JOBS = """
    from delayedq.desk import desk_task

    @desk_task(queue_name="cases")
    def decide(): ...
"""


@pytest.mark.parametrize("model", ["Clerk", "Boss"])
def test_the_desk_works_with_the_users_of_a_project(model, tmp_path):
    people = tmp_path / "people"
    (people / "migrations").mkdir(parents=True)
    for path, text in (
        (people / "__init__.py", ""),
        (people / "migrations" / "__init__.py", ""),
        (people / "models.py", MODELS),
        (people / "jobs.py", JOBS),
        (tmp_path / "program.py", PROGRAM),
    ):
        path.write_text(textwrap.dedent(text))

    words = [sys.executable, "program.py", model]
    ended = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)

    assert ended.stdout == "all is well\n", ended.stderr
