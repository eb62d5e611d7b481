"""Shared by all admin pages: a read-only base class, permissions, relative times, and escaped texts."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.contrib.admin.models import ADDITION, CHANGE, LogEntry
from django.contrib.contenttypes.models import ContentType
from django.core.exceptions import PermissionDenied
from django.http import Http404
from django.template.response import TemplateResponse
from django.utils.translation import gettext as _

from delayedq.operations.wording import grouped, visible
from delayedq.store import default_store

if TYPE_CHECKING:
    from collections.abc import Mapping

    from django.db.models import Model
    from django.http import HttpRequest, HttpResponse

    from delayedq.store.base import Store

    AnyAdmin = admin.ModelAdmin[Any]
else:
    AnyAdmin = admin.ModelAdmin

#: At most this many characters of a text are shown.
SHOWN = 10_000
#: The admin's log has this many characters for a name.
REPR_LENGTH = 200


#: A request with this header gets the content of the page alone: a list that refreshes itself, or a pane beside it.
FRAGMENT = "X-Delayedq-Fragment"


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
        return self.rendered(request, template, title, {**(context or {}), **more})

    def rendered(self, request: HttpRequest, template: str, title: str, context: Mapping[str, Any]) -> HttpResponse:
        """The same for a page that has asked for other permissions than that to view this model."""
        request.current_app = self.admin_site.name  # as all views of the admin do
        site = self.admin_site.each_context(request)
        base = {**site, "title": title, "opts": self.opts, "media": self.media, "why": request.POST.get("why", "")}
        base["frame"] = "admin/delayedq/fragment.html" if FRAGMENT in request.headers else "admin/base_site.html"
        return TemplateResponse(request, f"admin/delayedq/{template}", {**base, **context})

    def history_view(self, request: HttpRequest, object_id: str, extra_context: Any = None) -> HttpResponse:  # noqa: ARG002
        """Django's own page shows names as they are, and no edit. What was done to an object is on its own page."""
        self.demand_view(request)
        raise Http404(_("What was done to it is on its own page."))

    # The admin's log: names come from the database, and are written visibly.

    def log_addition(self, request: HttpRequest, obj: Model, message: Any) -> LogEntry:
        return self._logged(request, ADDITION, message, obj)

    def log_change(self, request: HttpRequest, obj: Model, message: Any) -> LogEntry:
        return self._logged(request, CHANGE, message, obj)

    def log_said(self, request: HttpRequest, said: str) -> None:
        """Write to the log what was done to no one object of this model."""
        self._logged(request, CHANGE, said)

    def _logged(self, request: HttpRequest, flag: int, message: Any, obj: Model | None = None) -> LogEntry:
        said = visible(message if isinstance(message, str) else json.dumps(message))
        return LogEntry.objects.create(
            user_id=request.user.pk or 0,
            content_type_id=ContentType.objects.get_for_model(obj or self.model).pk,
            object_id=None if obj is None else str(obj.pk),
            object_repr=(said if obj is None else visible(str(obj)))[:REPR_LENGTH],
            action_flag=flag,
            change_message=said,
        )


def may(request: HttpRequest, permission: str) -> bool:
    """Whether the user is active and has this permission of the app, such as `cancel_message`."""
    user = request.user
    return bool(user.is_active and user.has_perm(f"delayedq.{permission}"))


def demand(request: HttpRequest, permission: str) -> None:
    """Raise PermissionDenied if the user lacks this permission of the app."""
    if not may(request, permission):
        raise PermissionDenied


# Texts from the database


def cut(text: str, length: int = SHOWN) -> str:
    """The text, escaped; cut after `length` characters, with a note of its full length."""
    if len(text) <= length:
        return visible(text)
    return f"{visible(text[:length])}…\n{_('(cut: %(number)s characters in all)') % {'number': grouped(len(text))}}"
