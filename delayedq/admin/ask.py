"""A page that asks before it does something: GET asks, POST does it, says what became of it, and goes back.

def pause_view(self, request):
    self.demand(request, "pause_queue")
    ask = Ask(_("Pause"), _("Pause it?"), _("Workers will claim nothing more from it."), back)
    return self.ask(request, ask, lambda: Reply(_("It is paused."), did=pause(...)))
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from django.contrib import messages
from django.http import HttpResponseRedirect

from delayedq.admin.base import ReadOnlyAdmin, demand
from delayedq.exceptions import DelayedQError
from delayedq.models.operations import WHY_LENGTH
from delayedq.operations.acts import note
from delayedq.operations.wording import visible

if TYPE_CHECKING:
    from collections.abc import Callable

    from django.db.models import Model
    from django.http import HttpRequest, HttpResponse
    from django.utils.safestring import SafeString


class Ask(NamedTuple):
    """What is asked, and the address to go back to.

    keep: on the link that changes nothing, if "Back, change nothing" does not say it. seen: what the page has shown;
    the form brings it back, for who does only what was seen. warning: what looks like an error of the user.
    """

    verb: str
    title: str
    said: str
    back: str
    keep: str = ""
    is_destructive: bool = False
    seen: str = ""
    warning: SafeString | str = ""


class Reply(NamedTuple):
    """What is told. `did` False: nothing was changed, and nothing is logged.

    level: that of Django's message, if nothing was changed. is_recorded: whether it is among the edits already.
    recorded: what the edits say of it, if that is neither what is logged nor told: they name what it was done to.
    logged: what the log says of it, if it is not what is told; None: it is logged already. of: the object that the log
    is about; None: no single one. back: where else to go.
    """

    told: str
    did: bool = True
    level: int = messages.INFO
    logged: str | None = ""
    of: Model | None = None
    back: str = ""
    is_recorded: bool = False
    recorded: str = ""


def who_and_why(request: HttpRequest) -> tuple[str, str]:
    """The name of the user, and the reason that they have given, without NUL, which no database keeps; "": none."""
    return request.user.get_username(), request.POST.get("why", "").replace("\0", "").strip()[:WHY_LENGTH]


class AskingAdmin(ReadOnlyAdmin):
    """An admin with pages that ask."""

    def demand(self, request: HttpRequest, *permissions: str) -> None:
        """Raise PermissionDenied if the user may not view this model, or lacks one of these permissions of the app."""
        self.demand_view(request)
        for permission in permissions:
            demand(request, permission)

    def ask(self, request: HttpRequest, ask: Ask, do: Callable[[], Reply]) -> HttpResponse:
        """GET: the page that asks. POST: do it, and go back. What is refused with an error of ours is told."""
        if request.method != "POST":
            return self.page(request, "ask.html", ask.title, ask=ask)
        try:
            answer = do()
        except DelayedQError as error:
            messages.error(request, visible(str(error)))
            return HttpResponseRedirect(ask.back)
        self.tell(request, answer)
        return HttpResponseRedirect(answer.back or ask.back)

    def tell(self, request: HttpRequest, answer: Reply) -> None:
        """Record and log it, if anything was done, and tell the user."""
        if not answer.did:
            messages.add_message(request, answer.level, answer.told)
            return
        if not answer.is_recorded:
            note(self.store, answer.recorded or answer.logged or answer.told, *who_and_why(request))
        if answer.logged is not None:
            said = answer.logged or answer.told
            if answer.of is None:
                self.log_said(request, said)
            else:
                self.log_change(request, answer.of, said)
        messages.success(request, answer.told)
