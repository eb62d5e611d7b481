"""A project that has django-celery-beat installed, on a SQLite file of its own."""

import os

from tests.settings import *  # noqa: F403
from tests.settings import INSTALLED_APPS as APPS

INSTALLED_APPS = [*APPS, "django_celery_beat"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": os.environ["DATABASE_FILE"]}}
DATABASE_ROUTERS = []
