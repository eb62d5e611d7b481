"""Shared by all pages of the desk: a frame, which is a site's own or an admin site's, and links."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.http import HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse

from delayedq.core.bounds import KEY_LENGTH, NAME_LENGTH, is_storable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from django.http import HttpRequest, QueryDict


def framed(
    request: HttpRequest, site: Any, template: str, context: Mapping[str, Any], status: int = 200
) -> HttpResponse:
    """The page, in the frame of the admin site; None: in the desk's own, which a project may override."""
    around: dict[str, Any] = {"frame": "delayedq/desk/base.html"}
    if site is not None:
        request.current_app = site.name  # as all views of the admin do
        around = {**site.each_context(request), "frame": "delayedq/desk/base_admin.html"}
    around |= {"page": template, "reviews": request.user.has_perm("delayedq_desk.review_item")}
    around["csrf_cookie"] = readable_cookie()
    return render(request, f"delayedq/desk/{template}.html", {**around, **context}, status=status)


def readable_cookie() -> str:
    """The name of the cookie from which a script may read the token against forged requests; empty: there is none."""
    is_hidden = settings.CSRF_USE_SESSIONS or settings.CSRF_COOKIE_HTTPONLY
    return "" if is_hidden else settings.CSRF_COOKIE_NAME


def asked_queue(given: QueryDict) -> str:
    """The queue that a request names; an empty text for none, and for a name that no database stores."""
    queue = given.get("queue", "")
    return queue if len(queue) <= NAME_LENGTH and is_storable(queue) else ""


def asked_text(given: QueryDict) -> str:
    """What a request searches for; an empty text for nothing, and for what no key can have."""
    text = given.get("q", "").strip()
    return text if len(text) <= KEY_LENGTH and is_storable(text) else ""


def link(request: HttpRequest, name: str, *args: Any) -> str:
    """The path of a page of the desk, wherever it is mounted."""
    match = request.resolver_match
    namespace = "delayedq_desk" if match is None else match.namespace
    return reverse(f"{namespace}:{name}", args=args)


def go(request: HttpRequest, name: str, *args: Any) -> HttpResponse:
    return HttpResponseRedirect(link(request, name, *args))
