"""What was typed into a form of an item that cannot be saved: the answer has it, so that nobody types it twice."""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.contrib.auth.views import redirect_to_login
from django.http import Http404, HttpResponse
from django.urls import reverse
from django.utils.translation import gettext as _
from django.views.decorators.csrf import csrf_exempt, csrf_protect

from delayedq.desk.frames import framed, link

if TYPE_CHECKING:
    from collections.abc import Callable

    from django.http import HttpRequest

#: The verbs with a form.
WITH_FORM = {"finish", "postpone", "send_back", "assign", "comment"}

#: Who was signed in as a page was made: its forms send it.
SHOWN_TO = "dq-user"
#: What pages send besides.
OWN = {"csrfmiddlewaretoken", "assignment"}


def typed_in(form: Any) -> list[tuple[str, str]]:
    """The label and the text of each field of a bound form that has one."""
    said = ((str(field.label), _said(field.field, field.value())) for field in form.visible_fields())
    return [(label, text) for label, text in said if text]


def _said(field: Any, value: Any) -> str:
    if value in (None, "", False):
        return ""
    if value is True:
        return _("yes")
    values = [str(one) for one in value] if isinstance(value, list | tuple) else [str(value)]
    labels = {str(key): str(label) for key, label in getattr(field, "choices", None) or ()}
    return ", ".join(labels.get(one, one) for one in values if one)


def typed_in_request(request: HttpRequest) -> list[tuple[str, str]]:
    """The same of a form that is not known any more: the names of its fields, and what was sent."""
    sent = ((name, ", ".join(filter(None, values))) for name, values in request.POST.lists())
    given: Any = request.FILES
    files = ((name, str(file.name)) for name, file in given.items())
    return [(name, text) for name, text in (*sent, *files) if text and name not in OWN and not name.startswith("dq-")]


def keeps_typed(guard: Callable[..., Any], view: Callable[..., HttpResponse]) -> Callable[..., HttpResponse]:
    """The view of a verb behind a guard, which refuses forged requests. Who may not come in, finds no item, or has
    signed in since the page was shown, is shown what they have sent.
    """
    guarded: Callable[..., HttpResponse] = guard(view)

    @csrf_exempt  # the middleware would answer without what was sent
    @wraps(guarded)
    def kept(request: HttpRequest, pk: int, verb: str, site: Any = None) -> HttpResponse:
        if request.method != "POST" or verb not in WITH_FORM or _is_of_another_site(request):
            return guarded(request, pk=pk, verb=verb, site=site)
        if not (request.user.is_authenticated if site is None else site.has_permission(request)):
            why, url = _("You are signed out: nothing was changed."), _login(request, pk, site)
            return _lost(request, site, 403, why, (_("Sign in"), url))
        if is_of_another_user(request):
            return _of_another_user(request, site, (_("Open the item"), link(request, "item", pk)))
        if not _has_token(request):
            why = _("You have signed in again since the page was shown: nothing was changed.")
            return _lost(request, site, 403, why, (_("Open the item"), link(request, "item", pk)))
        try:
            return guarded(request, pk=pk, verb=verb, site=site)
        except Http404:
            why = _("The item is gone, or you may not see it any more: nothing was changed.")
            return _lost(request, site, 404, why, (_("My desk"), link(request, "mine")))

    return kept


def is_of_another_user(request: HttpRequest) -> bool:
    """Whether the page from which it was sent was made for another one, who was signed in in this browser."""
    return request.POST.get(SHOWN_TO, str(request.user.pk)) != str(request.user.pk)


def by_its_user(view: Callable[..., HttpResponse]) -> Callable[..., HttpResponse]:
    """The view, which does nothing that was sent from a page of another user."""

    @wraps(view)
    def checked(request: HttpRequest, *args: Any, site: Any = None, **kwargs: Any) -> HttpResponse:
        if request.method == "POST" and is_of_another_user(request):
            return _of_another_user(request, site, (_("My desk"), link(request, "mine")))
        return view(request, *args, site=site, **kwargs)

    return checked


def _of_another_user(request: HttpRequest, site: Any, further: tuple[str, str]) -> HttpResponse:
    why = _("Somebody else has signed in since the page was shown: nothing was changed.")
    return _lost(request, site, 403, why, further)


def _is_of_another_site(request: HttpRequest) -> bool:
    """Whether the browser says so: what another site has sent is no text of the reader, and is not shown."""
    return request.headers.get("Sec-Fetch-Site", "same-origin") != "same-origin"


def _has_token(request: HttpRequest) -> bool:
    """Whether Django lets the request pass, as no forged one; a login, also in another tab, changes the token."""
    passed = HttpResponse()
    return csrf_protect(lambda _request: passed)(request) is passed


def _login(request: HttpRequest, pk: int, site: Any) -> str:
    """Where one signs in, and comes back to the item."""
    own = settings.LOGIN_URL if site is None else reverse("admin:login", current_app=site.name)
    return redirect_to_login(link(request, "item", pk), own).url


def _lost(request: HttpRequest, site: Any, status: int, why: str, further: tuple[str, str]) -> HttpResponse:
    context = {"title": _("Not saved"), "why": why, "further": further, "typed": typed_in_request(request)}
    return framed(request, site, "lost", context, status)
