"""A saved model instance as an argument: stored as a reference, and loaded from its database when the task runs.

The task therefore sees the row as it is at that time. Loading is one query per instance, in the thread that reads the
payload.
"""

# ruff: noqa: SLF001 - Django's documented model API (_meta, _state, _base_manager) begins with an underscore

from __future__ import annotations

from typing import Any

from django.apps import apps
from django.core.exceptions import ObjectDoesNotExist, ValidationError
from django.db import DEFAULT_DB_ALIAS, connections
from django.db.models import Model

from delayedq.core import serialization
from delayedq.exceptions import ArgumentsMismatch, NotStorable, ReferenceGone


def _refer(instance: Model) -> dict[str, object]:
    if instance._state.adding or not instance._is_pk_set():  # type: ignore[attr-defined]  # not in the stubs yet
        raise NotStorable("only a reference to its row can be, so save it first")
    reference: dict[str, object] = {"model": instance._meta.label_lower, "pk": instance.pk}
    alias = instance._state.db or DEFAULT_DB_ALIAS
    return reference if alias == DEFAULT_DB_ALIAS else {**reference, "db": alias}


def _load(reference: dict[str, Any]) -> Model:
    model = _model(reference["model"])
    pk, alias = reference["pk"], reference.get("db", DEFAULT_DB_ALIAS)
    if alias not in connections:
        raise ArgumentsMismatch(f"The payload refers to an unknown database: {alias!r}.")
    try:
        return model._base_manager.using(alias).get(pk=pk)
    except ObjectDoesNotExist:
        raise ReferenceGone(f"{model._meta.label} {pk!r} was deleted after the message was stored.") from None
    except ValidationError as error:  # a pk of another type; for most fields that is a ValueError or TypeError
        raise ArgumentsMismatch(f"The payload refers to {model._meta.label} {pk!r}: {error.messages[0]}") from error


def _model(label: str) -> type[Model]:
    try:
        return apps.get_model(label)
    except LookupError as error:
        raise ArgumentsMismatch(f"The payload refers to an unknown model, {label!r}: {error}") from error


serialization.register("model", lambda value: isinstance(value, Model), _refer, _load)
