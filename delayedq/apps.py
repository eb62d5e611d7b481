from __future__ import annotations

from importlib import import_module

from django.apps import AppConfig
from django.utils.module_loading import autodiscover_modules
from django.utils.translation import gettext_lazy as _

import delayedq.store.connecting  # noqa: F401  it sees what other apps open when they are ready

#: Each registers what it adds to the life of messages, in the order in which the store asks.
FEATURES = ("steps.feature", "results.expiring", "limits.feature", "flows.feature")


class DelayedQConfig(AppConfig):
    name = "delayedq"
    verbose_name = _("Delayed queue")
    default_auto_field = "django.db.models.BigAutoField"

    def import_models(self) -> None:
        """Features are there before any app is ready, and may use the queue."""
        super().import_models()
        for name in FEATURES:
            import_module(f"delayedq.{name}")

    def ready(self) -> None:
        from delayedq import checks, references, signals  # noqa: F401  they register what they define
        from delayedq.store import migrating  # noqa: F401  the same

        autodiscover_modules("tasks")
