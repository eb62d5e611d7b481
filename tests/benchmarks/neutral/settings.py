"""A Django project with delayedq and one task, on DATABASE_URL, with Django's default OPTIONS."""

import os

from psycopg.conninfo import conninfo_to_dict

_server = conninfo_to_dict(os.environ["DATABASE_URL"])

SECRET_KEY = "for benchmarks only"
USE_TZ = True
INSTALLED_APPS = ["django.contrib.contenttypes", "delayedq", "tests.benchmarks.neutral"]
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": _server["dbname"],
        "USER": _server["user"],
        "PASSWORD": _server.get("password", ""),
        "HOST": _server["host"],
        "PORT": _server.get("port", ""),
        "CONN_MAX_AGE": None,
    }
}
TASKS = {"default": {"BACKEND": "delayedq.backend.DelayedQBackend"}}
LOGGING = {"version": 1, "disable_existing_loggers": False, "loggers": {"django.tasks": {"level": "WARNING"}}}
