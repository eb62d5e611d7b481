"""What has left the history for an archive: found by its search, shown as it was, and sent again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import messages
from django.http import Http404, HttpResponseRedirect
from django.urls import path, reverse
from django.utils.translation import gettext as _

from delayedq.admin.base import ReadOnlyAdmin, demand, may, visible
from delayedq.exceptions import DelayedQError, InvalidMessage
from delayedq.models import FinishedMessage, Message
from delayedq.operations.archived import Found, find_archived, send_again
from delayedq.operations.browsing import id_in

if TYPE_CHECKING:
    from django.http import HttpRequest, HttpResponse
    from django.urls import URLPattern

#: Who may send an archived message again: who may retry a dead letter.
PERMISSION = "retry_message"


class ArchivedMessages(ReadOnlyAdmin):
    """A part of the history's admin."""

    def archived(self, request: HttpRequest, *, id: int | None = None, key: str | None = None) -> Found:  # noqa: A002
        """What is archived of this id or key. An archive that can't be read is a warning on the page."""
        try:
            return find_archived(self.store, id=id, key=key)
        except DelayedQError as error:
            messages.warning(
                request, _("Archived messages are not shown: %(reason)s") % {"reason": visible(str(error))}
            )
            return Found([])

    def archived_like(self, request: HttpRequest, text: str | None) -> Found:
        """What is archived of a text that was searched for: of this key and, if it is a number, of this id."""
        if not text:
            return Found([])
        by_key, number = self.archived(request, key=text), id_in(text)
        by_id = Found([]) if number is None else self.archived(request, id=number)
        return Found([*by_id.messages, *by_key.messages], by_id.complete and by_key.complete)

    def ended_or_archived(self, request: HttpRequest, object_id: str) -> tuple[FinishedMessage, dict[str, Any]]:
        """The message of this id, and what its page adds if it is archived. Raises Http404."""
        id_ = id_in(object_id)
        if id_ is not None:
            self.demand_view(request)  # before the lake is asked
            if ended := FinishedMessage.objects.using(self.store.alias).filter(id=id_).first():
                return ended, {}
            if found := self.archived(request, id=id_).messages:
                again = self._again_url(id_) if may(request, PERMISSION) else None
                return found[0], {"is_archived": True, "again_url": again, "actions": [], "links": []}
        raise Http404(_("The history has no message %(id)s.") % {"id": object_id[:20]})

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view(self.again_view)
        return [path("<int:id_>/again/", view, name="delayedq_finishedmessage_again"), *super().get_urls()]

    def again_view(self, request: HttpRequest, id_: int) -> HttpResponse:
        """Ask, and on POST send it again. Raises PermissionDenied, Http404."""
        self.demand_view(request)
        demand(request, PERMISSION)
        ended, more = self.ended_or_archived(request, str(id_))
        if not more:  # it is in the history, where dead letters are retried
            return HttpResponseRedirect(self._page_url(id_))
        if request.method != "POST":
            title = _("Send message %(id)s again") % {"id": id_}
            return self.page(request, "again.html", title, {"message": ended, "page_url": self._page_url(id_)})
        return self._sent(request, ended)

    def _sent(self, request: HttpRequest, ended: FinishedMessage) -> HttpResponse:
        try:
            sent = send_again(self.store, ended)
        except InvalidMessage as error:
            messages.error(request, visible(str(error)))
            return HttpResponseRedirect(self._page_url(ended.pk))
        if sent is None:
            messages.warning(request, _("A live message has its key: nothing was sent."))
            return HttpResponseRedirect(self._page_url(ended.pk))
        note = _("Sent again: the archived message %(id)s.") % {"id": ended.pk}
        self.log_addition(request, Message(id=sent, kind=ended.kind, key=ended.key), note)
        messages.success(request, _("It was sent again, as message %(id)s.") % {"id": sent})
        return HttpResponseRedirect(reverse("admin:delayedq_message_change", args=[sent]))

    def _page_url(self, id_: int) -> str:
        return reverse("admin:delayedq_finishedmessage_change", args=[id_])

    def _again_url(self, id_: int) -> str:
        return reverse("admin:delayedq_finishedmessage_again", args=[id_])
