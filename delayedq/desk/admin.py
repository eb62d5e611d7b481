"""The desk in the admin: its pages, the list of all items, and what is set: queues, skills and modes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from django import forms
from django.contrib import admin
from django.urls import include, path
from django.utils.translation import gettext_lazy as _

from delayedq.core.bounds import is_storable
from delayedq.desk import automation_page, replies, rules
from delayedq.desk.display import text_of
from delayedq.desk.ends import shown_result
from delayedq.desk.errors import DeskError, NotAllowed
from delayedq.desk.models import HELD, Automation, DeskQueue, Item, ReplyTemplate, Skill
from delayedq.desk.open_items import queues_of
from delayedq.desk.replies import desk_kinds
from delayedq.desk.urls import app_name, pages
from delayedq.tasks import registered

if TYPE_CHECKING:
    from django.db.models import QuerySet
    from django.http import HttpRequest

    AnyAdmin = admin.ModelAdmin[Any]
    AnyForm = forms.ModelForm[Any]
else:
    AnyAdmin, AnyForm = admin.ModelAdmin, forms.ModelForm

#: What may be masked: it is shown by a method, and no query string asks for it. The digest is not shown at all, as it
#: tells whether guessed arguments are the masked ones.
MASKED = ("reason", "why", "proposal", "truth", "decision", "digest")


class ListAdmin(AnyAdmin):
    """A list whose filters no database refuses."""

    def lookup_allowed(self, lookup: str, value: Any, request: Any = None) -> bool:
        """What no database can store is no value to ask for; Django answers such a request with 400."""
        values = value if isinstance(value, list | tuple) else [value]
        can_be_stored = all(is_storable(str(one)) for one in values)
        return can_be_stored and bool(super().lookup_allowed(lookup, value, request))


class QueueFilter(admin.SimpleListFilter):
    """As Django's own of a field, whose DISTINCT reads all items."""

    title, parameter_name = _("queue"), "queue"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(name, name) for name in queues_of(model_admin.get_queryset(request))]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:  # noqa: ARG002
        return queryset.filter(queue=self.value()) if self.value() is not None else queryset


@admin.register(Item)
class ItemAdmin(ListAdmin):
    list_display = ("__str__", "queue", "state", "held_by", "due_at", "mode")
    list_filter = ("state", QueueFilter, "mode")
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

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return rules.visible(request.user).ever_opened()

    def lookup_allowed(self, lookup: str, value: Any, request: Any = None) -> bool:
        """A filter of what is not shown would tell it letter by letter."""
        if lookup.split("__", maxsplit=1)[0] in {*MASKED, "confidence", "agreed"}:
            return False
        return super().lookup_allowed(lookup, value, request)

    def get_exclude(self, request: HttpRequest, obj: Any = None) -> Any:  # noqa: ARG002
        """Who is to decide without seeing what the handler has decided, or what is right, does not see it here."""
        hidden = obj is not None and obj.is_open and (obj.is_blind or obj.truth is not None)
        return (*MASKED, "confidence", "agreed") if hidden else MASKED

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:  # noqa: ARG002
        names = {"shown_reason", "shown_why", "shown_proposal", "shown_truth", "shown_decision"}
        if obj is None or obj.is_open:
            names -= {"shown_truth", "shown_proposal"} if obj is None or obj.is_blind else {"shown_truth"}
        return sorted(names)

    @admin.display(description=_("holder"), ordering="holder")
    def held_by(self, item: Item) -> Any:
        """Not who held it last."""
        return item.holder if item.state in HELD else None

    @admin.display(description=_("reason"))
    def shown_reason(self, item: Item) -> str:
        return str(shown_result(item.kind, json.dumps(item.reason)))

    @admin.display(description=_("why"))
    def shown_why(self, item: Item) -> str:
        return str(shown_result(item.kind, json.dumps(item.why)))

    @admin.display(description=_("proposal"))
    def shown_proposal(self, item: Item) -> str | None:
        return _shown(item, item.proposal)

    @admin.display(description=_("truth"))
    def shown_truth(self, item: Item) -> str | None:
        return _shown(item, item.truth)

    @admin.display(description=_("decision"))
    def shown_decision(self, item: Item) -> str | None:
        return _shown(item, item.decision)


def _shown(item: Item, text: str | None) -> str | None:
    return None if text is None else text_of(shown_result(item.kind, text))


class AutomationForm(AnyForm):
    """It refuses what the button of the page refuses; a row that is left as it is says nothing new."""

    user: Any = None

    def clean(self) -> Any:
        given = super().clean() or {}
        kind, mode = given.get("kind", self.instance.kind), given.get("mode")
        try:
            if kind and mode and self.has_changed():
                automation_page.demand_mode(self.user, kind, mode)
        except DeskError as refused:
            field = "kind" if isinstance(refused, NotAllowed) else "mode"
            self.add_error(field if field in self.fields else None, str(refused))
        return given


@admin.register(Automation)
class AutomationAdmin(ListAdmin):
    list_display = ("kind", "mode")
    list_editable = ("mode",)
    form = AutomationForm

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:  # noqa: ARG002
        """A row stays that of its task: with another one it would set the modes of both."""
        return ("kind",) if obj else ()

    def get_form(self, request: HttpRequest, obj: Any = None, change: bool = False, **options: Any) -> Any:
        return _of_user(super().get_form(request, obj, change, **options), request)

    def get_changelist_form(self, request: HttpRequest, **options: Any) -> Any:
        return _of_user(super().get_changelist_form(request, **options | {"form": self.form}), request)

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        with automation_page.recorded(request.user, obj.kind):
            super().save_model(request, obj, form, change)

    def delete_model(self, request: HttpRequest, obj: Any) -> None:
        with automation_page.recorded(request.user, obj.kind):
            super().delete_model(request, obj)

    def delete_queryset(self, request: HttpRequest, queryset: Any) -> None:
        """One by one, since each is recorded."""
        for row in queryset:
            self.delete_model(request, row)

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """To delete a row sets the mode of the code again. That of a task that is gone sets nothing."""
        may = bool(super().has_delete_permission(request, obj))
        return may and (obj is None or obj.kind not in registered or automation_page.may_set_of(request.user, obj.kind))


def _of_user(form: Any, request: HttpRequest) -> Any:
    return type(form.__name__, (form,), {"user": request.user})


@admin.register(DeskQueue)
class DeskQueueAdmin(ListAdmin):
    list_display = ("queue", "capacity", "escalate_to")
    filter_horizontal = ("groups",)


class ReplyTemplateForm(AnyForm):
    """It refuses what no form of a task could take."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if "kind" in self.fields:  # as it was, if its task is gone
            kinds = sorted({*desk_kinds(), self.instance.kind} - {""})
            self.fields["kind"] = forms.ChoiceField(
                label=_("task"), choices=[("", "-"), *((kind, kind) for kind in kinds)]
            )

    def clean(self) -> Any:
        given = super().clean() or {}
        if given.get("kind") and given.get("field"):
            for field, text in replies.problems(given["kind"], given["field"], given.get("text", "")).items():
                self.add_error(field, text)
        return given


@admin.register(ReplyTemplate)
class ReplyTemplateAdmin(ListAdmin):
    form = ReplyTemplateForm
    list_display = ("name", "kind", "field")
    search_fields = ("name", "kind")
    ordering = ("kind", "field", "name")


@admin.register(Skill)
class SkillAdmin(ListAdmin):
    list_display = ("user", "name", "until")
    list_filter = ("name",)
