"""Read-only pages: the site moves a flight's reminder together with the flight, which a form of the admin would not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.contrib import admin

from example_project.flights.models import Delivery, Flight, Report

if TYPE_CHECKING:
    from django.db.models import Model
    from django.http import HttpRequest


# ruff: noqa: ARG002 -- Django passes arguments that a constant answer does not need


class ReadOnlyAdmin(admin.ModelAdmin):  # type: ignore[type-arg]  # not generic at run time
    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False


@admin.register(Flight)
class FlightAdmin(ReadOnlyAdmin):
    list_display = ("code", "origin", "destination", "scheduled_departure", "departure", "cancelled")
    list_filter = ("day", "cancelled", "origin", "carrier")
    search_fields = ("number", "destination")
    date_hierarchy = "day"


@admin.register(Delivery)
class DeliveryAdmin(ReadOnlyAdmin):
    list_display = ("flight", "due_at", "delivered_at")
    list_select_related = ("flight",)


@admin.register(Report)
class ReportAdmin(ReadOnlyAdmin):
    list_display = ("day", "flights", "cancelled", "delivered", "late")
    ordering = ("-day",)
