"""Export what a list shows, all of it, as CSV or as JSON lines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import messages
from django.core.exceptions import ValidationError
from django.http import HttpResponseNotAllowed, HttpResponseRedirect, QueryDict, StreamingHttpResponse
from django.urls import path, reverse
from django.utils.translation import gettext as _

from delayedq.admin.base import demand, may
from delayedq.admin.bulk import BulkAdmin, demand_filter
from delayedq.admin.filters import EndedFilter, LiveFilter
from delayedq.admin.names import NamePages
from delayedq.operations import exporting
from delayedq.operations.wording import visible

if TYPE_CHECKING:
    from collections.abc import Iterator

    from django.http import HttpRequest, HttpResponseBase
    from django.urls import URLPattern


class ExportPages(NamePages, BulkAdmin):
    """A part of the admins of live and of ended messages."""

    def get_urls(self) -> list[URLPattern]:
        view, name = self.admin_site.admin_view(self.export_view), f"delayedq_{self.opts.model_name}_export"
        return [path("export/", view, name=name), *super().get_urls()]

    def export_view(self, request: HttpRequest) -> HttpResponseBase:
        """POST: stream what the filters of the list select; `format` is "csv" or "json"."""
        self.demand_view(request)
        demand(request, "export_message")
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        query = QueryDict(request.POST.get("query", ""))
        demand_filter(request, query)
        try:
            names, rows = self._selected(request, query)
        except ValidationError as invalid:
            messages.error(request, " ".join(invalid.messages))
            return HttpResponseRedirect(reverse(f"admin:delayedq_{self.opts.model_name}_changelist"))
        is_csv = request.POST.get("format") == "csv"
        self._log_export(request, query)
        lines = exporting.csv_lines(rows, names) if is_csv else exporting.json_lines(rows)
        return _file(lines, is_csv=is_csv, name=str(self.opts.model_name))

    def _selected(self, request: HttpRequest, query: QueryDict) -> tuple[tuple[str, ...], Iterator[dict[str, Any]]]:
        """The columns, and the rows, which are read as they are sent. Raises ValidationError."""
        reads, asked = may(request, "view_payload"), self.filter_of(query)
        if isinstance(asked, LiveFilter):
            live = asked.selection(self.store.now())
            return exporting.LIVE, exporting.live_rows(self.store, live, payload=reads)
        assert isinstance(asked, EndedFilter)
        return exporting.ENDED, exporting.ended_rows(self.store, asked.selection(), payload=reads)

    def _log_export(self, request: HttpRequest, query: QueryDict) -> None:
        said = _("Export: %s") % (visible(query.urlencode()) or _("everything"))
        self.log_said(request, said)


def _file(lines: Iterator[str], *, is_csv: bool, name: str) -> StreamingHttpResponse:
    kind, ending = ("text/csv", "csv") if is_csv else ("application/jsonl", "jsonl")
    answer = StreamingHttpResponse(lines, content_type=f"{kind}; charset=utf-8")
    answer["Content-Disposition"] = f'attachment; filename="{name}.{ending}"'
    answer["X-Content-Type-Options"] = "nosniff"
    return answer
