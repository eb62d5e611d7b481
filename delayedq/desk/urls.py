"""The pages of the desk, to be mounted in a site: `path("desk/", include("delayedq.desk.urls"))`.

An admin site has them too: `delayedq.desk.admin` mounts `pages(site)` beside the list of items.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib.auth.decorators import login_required
from django.urls import path
from django.views.decorators.csrf import csrf_protect

from delayedq.desk import acts, item_pages, saved_views, views
from delayedq.desk.typed import by_its_user, keeps_typed

if TYPE_CHECKING:
    from django.urls import URLPattern


def pages(site: Any = None) -> list[URLPattern]:
    """The patterns of the pages, in the frame of this admin site; None: in that of `delayedq/desk/base.html`."""
    guarded: Any = _signed_in if site is None else site.admin_view
    routes: dict[str, tuple[str, Any]] = {
        "mine": ("", views.mine),
        "next": ("next/", item_pages.take_next),
        "team": ("team/", views.team),
        "deal": ("team/deal/", acts.deal),
        "assign": ("team/assign/", acts.assign_ticked),
        "view": ("team/view/", saved_views.save_view),
        "review": ("review/", views.review),
        "figures": ("figures/", views.figures),
        "automation": ("automation/", views.automation),
        "mode": ("automation/mode/", acts.set_mode),
        "item": ("<int:pk>/", item_pages.one),
        "file": ("<int:pk>/file/<int:comment>/", item_pages.attached),
        "present": ("<int:pk>/present/", item_pages.present),
        "act": ("<int:pk>/<slug:verb>/", item_pages.act),
    }
    views_ = {name: guarded(by_its_user(view)) for name, (_, view) in routes.items()}
    views_["act"] = keeps_typed(guarded, by_its_user(item_pages.act))
    return [path(route, views_[name], {"site": site}, name=name) for name, (route, _) in routes.items()]


def _signed_in(view: Any) -> Any:
    """As an admin site does it: each page sets the cookie of the token, and each change is checked."""
    return csrf_protect(login_required(view))


app_name = "delayedq_desk"
urlpatterns = pages()
