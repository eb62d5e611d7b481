"""Both tables, to look at. Whatever changes a message goes through the store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin

from delayedq.models import FinishedMessage, Message

if TYPE_CHECKING:
    from django.http import HttpRequest

    AnyAdmin = admin.ModelAdmin[Any]
else:
    AnyAdmin = admin.ModelAdmin


class ReadOnlyAdmin(AnyAdmin):
    show_full_result_count = False
    search_fields = ("=key", "=id")
    list_per_page = 50

    def has_add_permission(self, request: HttpRequest) -> bool:  # noqa: ARG002
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:  # noqa: ARG002
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:  # noqa: ARG002
        return False


@admin.register(Message)
class MessageAdmin(ReadOnlyAdmin):
    list_display = ("id", "kind", "key", "queue", "priority", "scheduled_at", "attempt", "leased_until")
    ordering = ("-id",)


@admin.register(FinishedMessage)
class FinishedMessageAdmin(ReadOnlyAdmin):
    list_display = ("id", "kind", "key", "queue", "outcome", "attempts", "started_at", "finished_at")
    list_filter = ("outcome",)
    ordering = ("-id",)
