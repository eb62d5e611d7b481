"""The desk in the admin: its pages, the list of all items, and what is set: queues, skills and modes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.urls import include, path

from delayedq.desk.models import Automation, DeskQueue, Item, Skill
from delayedq.desk.urls import app_name, pages

if TYPE_CHECKING:
    from django.http import HttpRequest

    AnyAdmin = admin.ModelAdmin[Any]
else:
    AnyAdmin = admin.ModelAdmin


@admin.register(Item)
class ItemAdmin(AnyAdmin):
    list_display = ("__str__", "queue", "state", "holder", "due_at", "mode", "agreed")
    list_filter = ("state", "queue", "mode", "agreed")
    list_select_related = ("holder",)
    search_fields = ("=key", "=message_id")
    ordering = ("-pk",)
    show_full_result_count = False
    change_list_template = "delayedq/desk/changelist.html"

    def get_urls(self) -> list[Any]:
        """The desk itself is beside the list: `desk/`."""
        return [path("desk/", include((pages(self.admin_site), app_name))), *super().get_urls()]

    def has_add_permission(self, request: HttpRequest) -> bool:  # noqa: ARG002
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:  # noqa: ARG002
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:  # noqa: ARG002
        return False

    def get_exclude(self, request: HttpRequest, obj: Any = None) -> Any:  # noqa: ARG002
        """Who is to decide without seeing what the handler has decided, or what is right, does not see it here."""
        if obj is None or not obj.is_open or obj.decision is not None:
            return None
        return ("truth", "proposal", "confidence") if obj.is_blind else ("truth",)


@admin.register(Automation)
class AutomationAdmin(AnyAdmin):
    list_display = ("kind", "mode")
    list_editable = ("mode",)


@admin.register(DeskQueue)
class DeskQueueAdmin(AnyAdmin):
    list_display = ("queue", "capacity", "escalate_to")
    filter_horizontal = ("groups",)


@admin.register(Skill)
class SkillAdmin(AnyAdmin):
    list_display = ("user", "name", "until")
    list_filter = ("name",)
