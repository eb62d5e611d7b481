"""Queues to choose from, so that a name is not mistyped."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django import forms
from django.utils.html import format_html, format_html_join

from delayedq.backend import DelayedQBackend
from delayedq.compat import task_backends
from delayedq.core.bounds import NAME_LENGTH
from delayedq.store import default_store
from delayedq.store.protocol import BARE

if TYPE_CHECKING:
    from django.utils.safestring import SafeString


class WithSuggestions(forms.TextInput):
    """A text, with names to choose from."""

    names: list[str]

    def render(self, name: str, value: Any, attrs: Any = None, renderer: Any = None) -> SafeString:
        list_id = f"{(attrs or {}).get('id', name)}_names"
        field = super().render(name, value, {**(attrs or {}), "list": list_id}, renderer)
        options = format_html_join("", '<option value="{}">', ((each,) for each in self.names))
        return format_html('{}<datalist id="{}">{}</datalist>', field, list_id, options)


def queue_field(label: Any, *, required: bool = True) -> forms.Field:
    """A choice of the queues in QUEUES and of those that hold messages of tasks; a text if QUEUES allows any name."""
    known, is_closed = _queues()
    if is_closed:
        names = sorted({*known} | ({""} if not required else set()))
        return forms.ChoiceField(label=label, choices=[(name, name) for name in names], required=required)
    field = forms.CharField(label=label, max_length=NAME_LENGTH, required=required, widget=WithSuggestions())
    field.widget.names = sorted(known)
    return field


def _queues() -> tuple[set[str], bool]:
    """The known queues of tasks, and whether these are all there can be."""
    each = [
        backend for backend in map(task_backends.__getitem__, task_backends) if isinstance(backend, DelayedQBackend)
    ]
    held = {lane.queue for lane in default_store().lanes() if BARE not in lane.queue}
    return held.union(*(backend.queues for backend in each)), all(backend.queues for backend in each)
