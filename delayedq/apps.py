from __future__ import annotations

from django.apps import AppConfig
from django.utils.module_loading import autodiscover_modules
from django.utils.translation import gettext_lazy as _

import delayedq.store.connecting  # noqa: F401  it sees what other apps open when they are ready


class DelayedQConfig(AppConfig):
    name = "delayedq"
    verbose_name = _("Delayed queue")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from delayedq import checks, references, signals  # noqa: F401  they register what they define

        autodiscover_modules("tasks")
