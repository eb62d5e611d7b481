"""What the admin pages share: a read-only base class, permissions, relative times, and escaped texts."""

from __future__ import annotations

import unicodedata
from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.template.response import TemplateResponse
from django.utils.html import format_html
from django.utils.timezone import localtime

from delayedq.operations.wording import relative
from delayedq.store import default_store

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from django.http import HttpRequest, HttpResponse
    from django.utils.safestring import SafeString

    from delayedq.store.base import Store

    AnyAdmin = admin.ModelAdmin[Any]
else:
    AnyAdmin = admin.ModelAdmin

#: At most this many characters of a text are shown.
SHOWN = 10_000


class ReadOnlyAdmin(AnyAdmin):
    """An admin without forms to edit. Each change has its own page, permission and confirmation."""

    show_full_result_count = False
    list_per_page = 50
    actions = None

    def has_add_permission(self, request: HttpRequest) -> bool:  # noqa: ARG002
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:  # noqa: ARG002
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:  # noqa: ARG002
        return False

    @property
    def store(self) -> Store:
        return default_store()

    def demand_view(self, request: HttpRequest) -> None:
        """Raise PermissionDenied if the user may not view this model."""
        if not self.has_view_permission(request):
            raise PermissionDenied

    def page(
        self, request: HttpRequest, template: str, title: str, context: Mapping[str, Any] | None = None, **more: Any
    ) -> HttpResponse:
        """An admin page, with header, breadcrumbs and messages. Raises PermissionDenied without view permission."""
        self.demand_view(request)
        request.current_app = self.admin_site.name  # as all views of the admin do
        site = self.admin_site.each_context(request)
        base = {**site, "title": title, "opts": self.opts, "media": self.media}
        return TemplateResponse(request, f"admin/delayedq/{template}", {**base, **(context or {}), **more})


def may(request: HttpRequest, permission: str) -> bool:
    """Whether the user is active and has this permission of the app, such as `cancel_message`."""
    user = request.user
    return bool(user.is_active and user.has_perm(f"delayedq.{permission}"))


def demand(request: HttpRequest, permission: str) -> None:
    """Raise PermissionDenied if the user lacks this permission of the app."""
    if not may(request, permission):
        raise PermissionDenied


# Times


def when(moment: datetime | None, now: datetime) -> SafeString | str:
    """A `<time>` element such as "in 3 h", with the exact time as tooltip and attribute; "-" for None."""
    if moment is None:
        return "-"
    local = localtime(moment)
    return format_html(
        '<time datetime="{}" title="{}">{}</time>',
        moment.isoformat(),
        f"{local:%Y-%m-%d %H:%M:%S %Z}",
        relative(moment, now),
    )


# Texts from the database


def visible(text: str) -> str:
    """The text with surrogates, control and formatting characters (such as bidi overrides) written as escapes."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(_spelled(character) for character in text)


def _spelled(character: str) -> str:
    if character in "\n\t" or unicodedata.category(character) not in {"Cc", "Cf", "Cs"}:
        return character
    return character.encode("unicode_escape").decode()


def cut(text: str, length: int = SHOWN) -> str:
    """The text, escaped; cut after `length` characters, with a note of its full length."""
    if len(text) <= length:
        return visible(text)
    return f"{visible(text[:length])}…\n(cut: {len(text):,} characters in all)"
