"""Bulk edits: a list of them, a page for each, and undo."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from django.contrib import admin, messages
from django.core import signing
from django.http import Http404, HttpResponseRedirect
from django.urls import path, reverse
from django.utils.timezone import localtime
from django.utils.translation import gettext_lazy

from delayedq.admin.base import ReadOnlyAdmin, demand, may, visible, when
from delayedq.admin.bulk import SALT, summary
from delayedq.admin.changes import TO_UNDO
from delayedq.admin.differences import PER_PAGE, rows
from delayedq.models import Edit
from delayedq.operations.browsing import id_in
from delayedq.operations.undo import can_undo, undo

if TYPE_CHECKING:
    from collections.abc import Mapping

    from django.http import HttpRequest, HttpResponse
    from django.urls import URLPattern


@admin.register(Edit)
class EditAdmin(ReadOnlyAdmin):
    list_display = ("what", "made_at", "who", "changed", "skipped", "undone_at", "undone_who")
    ordering = ("-id",)
    sortable_by = ()

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(self.undo_view)
        return [path("<int:edit_id>/undo/", view, name="delayedq_edit_undo"), *super().get_urls()]

    @admin.display(description=gettext_lazy("description"))
    def what(self, edit: Edit) -> str:
        return visible(edit.description or edit.action)

    @admin.display(description=gettext_lazy("made by"))
    def who(self, edit: Edit) -> str:
        return visible(edit.made_by)

    @admin.display(description=gettext_lazy("undone by"))
    def undone_who(self, edit: Edit) -> str:
        return visible(edit.undone_by)

    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",  # noqa: ARG002
        extra_context: Mapping[str, Any] | None = None,
    ) -> HttpResponse:
        edit = self._known(id_in(object_id) or 0)
        after, now = id_in(request.GET.get("after", "")) or 0, self.store.now()
        edited = rows(self.store, edit, after, payload=may(request, "view_payload"))
        context = {
            "edit": edit,
            "made": when(edit.made_at, now),
            "undone": edit.undone_at and when(edit.undone_at, now),
            "edited": edited,
            "next": edited[-1].id if len(edited) == PER_PAGE else None,
            "zone": f"{localtime(now):%Z}",
            "description": visible(edit.description or edit.action),
            "made_by": visible(edit.made_by),
            "undone_by": visible(edit.undone_by),
            "can_undo": can_undo(edit) and may(request, TO_UNDO[edit.action]),
        }
        return self.page(
            request, "edit.html", visible(edit.description or edit.action), {**context, **(extra_context or {})}
        )

    def undo_view(self, request: HttpRequest, edit_id: int) -> HttpResponse:
        """GET: ask for confirmation. POST: undo one part; the page posts again until all is done."""
        self.demand_view(request)
        edit = self._known(edit_id)
        demand(request, TO_UNDO.get(edit.action, ""))
        if not can_undo(edit):
            messages.warning(request, "This edit was undone already, or changed nothing.")
            return HttpResponseRedirect(self._url(edit))
        if request.method != "POST":
            return self.page(request, "undo.html", "Undo?", edit=edit, description=visible(edit.description))
        return self._undo(request, edit)

    def _undo(self, request: HttpRequest, edit: Edit) -> HttpResponse:
        try:
            after, changed, skipped = signing.loads(request.POST.get("ongoing", ""), salt=f"{SALT}.undo.{edit.pk}")
        except signing.BadSignature:
            after, changed, skipped = 0, 0, {}
        progress = undo(self.store, edit, after, request.user.get_username())
        changed, reasons = changed + progress.changed, Counter(skipped) + progress.skipped
        if progress.after is not None:
            ongoing = signing.dumps([progress.after, changed, reasons], salt=f"{SALT}.undo.{edit.pk}")
            return self.page(request, "ongoing.html", "Undo…", edit=edit, ongoing=ongoing, given=[])
        self.log_change(request, edit, f"Undo: {summary(changed, reasons)}")
        messages.success(request, f"Undone: {summary(changed, reasons)}.")
        return HttpResponseRedirect(self._url(edit))

    def _known(self, id_: int) -> Edit:
        edit = Edit.objects.using(self.store.alias).filter(id=id_).first()
        if edit is None:
            raise Http404("There is no such edit; edits are deleted after 30 days.")
        return edit

    def _url(self, edit: Edit) -> str:
        return reverse("admin:delayedq_edit_change", args=[edit.pk])
