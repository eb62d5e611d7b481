"""A Django project with delayedq and one task, on DATABASE_URL, with Django's default OPTIONS."""

import environ

SECRET_KEY = "for benchmarks only"
USE_TZ = True
INSTALLED_APPS = ["django.contrib.contenttypes", "delayedq", "tests.benchmarks.neutral"]
DATABASES = {"default": {**environ.Env().db("DATABASE_URL"), "CONN_MAX_AGE": None}}
TASKS = {"default": {"BACKEND": "delayedq.backend.DelayedQBackend"}}
LOGGING = {"version": 1, "disable_existing_loggers": False, "loggers": {"django.tasks": {"level": "WARNING"}}}
