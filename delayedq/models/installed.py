"""Imported before all models: where delayedq is not installed, Django's error names a model, and this one the cure."""

from __future__ import annotations

from django.apps import apps
from django.core.exceptions import ImproperlyConfigured

if apps.apps_ready and not apps.is_installed("delayedq"):
    raise ImproperlyConfigured('"delayedq" is not in INSTALLED_APPS. Add it, and run manage.py migrate.')
