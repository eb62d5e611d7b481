"""Bulk edits: a list of them, a page for each, and undo."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from django.contrib import admin, messages
from django.core import signing
from django.http import Http404, HttpResponseRedirect
from django.urls import path, reverse
from django.utils.translation import gettext as _

from delayedq.admin.base import ReadOnlyAdmin, demand, may, visible
from delayedq.admin.bulk import SALT, SAMPLE, summary
from delayedq.admin.changes import TO_UNDO
from delayedq.admin.differences import PER_PAGE, rows
from delayedq.models import Edit
from delayedq.operations.browsing import id_in
from delayedq.operations.undo import can_undo, undo

if TYPE_CHECKING:
    from collections.abc import Mapping

    from django.http import HttpRequest, HttpResponse
    from django.urls import URLPattern


#: The list shows this many edits on a page.
EDITS_PER_PAGE = 50


@admin.register(Edit)
class EditAdmin(ReadOnlyAdmin):
    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(self.undo_view)
        return [path("<int:edit_id>/undo/", view, name="delayedq_edit_undo"), *super().get_urls()]

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """The latest edits first; `before`: continue with those before this id."""
        before, edits = id_in(request.GET.get("before", "")), Edit.objects.using(self.store.alias).order_by("-id")
        found = list((edits if before is None else edits.filter(id__lt=before))[: EDITS_PER_PAGE + 1])
        context = {
            "rows": [(edit, *_texts(edit)) for edit in found[:EDITS_PER_PAGE]],
            "next": found[EDITS_PER_PAGE - 1].pk if len(found) > EDITS_PER_PAGE else None,
            "is_first": before is None,
            "now": self.store.now(),
        }
        return self.page(request, "edits.html", _("Edits"), {**context, **(extra_context or {})})

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
        description, made_by, undone_by = _texts(edit)
        context = {
            "edit": edit,
            "now": now,
            "edited": edited,
            "next": edited[-1].id if len(edited) == PER_PAGE else None,
            "description": description,
            "made_by": made_by,
            "undone_by": undone_by,
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
            messages.warning(request, _("This edit was undone already, or changed nothing."))
            return HttpResponseRedirect(self._url(edit))
        if request.method != "POST":
            edited = rows(self.store, edit, 0, payload=may(request, "view_payload"))
            context = {"edit": edit, "description": visible(edit.description), "edited": edited[:SAMPLE]}
            return self.page(request, "undo.html", _("Undo?"), context)
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
            return self.page(request, "ongoing.html", _("Undo…"), edit=edit, ongoing=ongoing, given=[])
        self.log_change(request, edit, _("Undone: %(summary)s.") % {"summary": summary(changed, reasons)})
        messages.success(request, _("Undone: %(summary)s.") % {"summary": summary(changed, reasons)})
        return HttpResponseRedirect(self._url(edit))

    def _known(self, id_: int) -> Edit:
        edit = Edit.objects.using(self.store.alias).filter(id=id_).first()
        if edit is None:
            raise Http404(_("There is no such edit; edits are deleted after 30 days."))
        return edit

    def _url(self, edit: Edit) -> str:
        return reverse("admin:delayedq_edit_change", args=[edit.pk])


def _texts(edit: Edit) -> tuple[str, str, str]:
    """What was done, by whom, and who undid it."""
    return visible(edit.description or edit.action), visible(edit.made_by), visible(edit.undone_by)
