from __future__ import annotations

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class DeskConfig(AppConfig):
    name = "delayedq.desk"
    label = "delayedq_desk"
    verbose_name = _("Desk")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from delayedq.desk.models import Item
        from delayedq.desk.rounds import close_unopened, close_withdrawn, forget_closed, let_wait
        from delayedq.desk.verbs import VERBS
        from delayedq.store.sweeps import register_sweep

        for verb in VERBS:
            setattr(Item, verb.__name__, verb)
        for sweep in (let_wait, close_withdrawn, close_unopened, forget_closed):
            register_sweep(sweep)
