"""The tables of another framework, read through its models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.apps import apps
from django.db import router

from delayedq.exceptions import InvalidMessage
from delayedq.store import default_store

if TYPE_CHECKING:
    from django.db.models import QuerySet


def rows_of(app: str, name: str) -> QuerySet[Any]:
    """The rows of a model of that app. Raises InvalidMessage if it is not installed, or in another database."""
    if not apps.is_installed(app):
        raise InvalidMessage(f"{app!r} is not in INSTALLED_APPS; its tables are read through its models.")
    (config,) = (config for config in apps.get_app_configs() if config.name == app)
    model: Any = config.get_model(name)
    alias, own = router.db_for_write(model), default_store().alias
    if alias != own:
        raise InvalidMessage(
            f"The tables of {app!r} are in the database {alias!r}, and those of delayedq in {own!r}: nothing can be "
            "moved between them in one transaction."
        )
    rows: QuerySet[Any] = model.objects.using(own)
    return rows
