"""Saved views of the team desk: its filters, kept by a name for one user. The link of a view holds the filters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django import forms
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_POST

from delayedq.core.bounds import NAME_LENGTH
from delayedq.desk import views
from delayedq.desk.models import SavedView
from delayedq.operations.browsing import id_in

if TYPE_CHECKING:
    from django.http import HttpRequest, HttpResponse


class SaveViewForm(forms.Form):
    """The name of a view; of one that the user has, the filters are replaced."""

    name = forms.CharField(label=gettext_lazy("Name of the view"), max_length=NAME_LENGTH)

    def __init__(self, *args: Any, user: Any = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.user = user

    def clean_name(self) -> str:
        name: str = self.cleaned_data["name"]
        known = set(SavedView.objects.filter(user=self.user).values_list("name", flat=True))
        if len(known) >= views.MOST_VIEWS and name not in known:
            raise forms.ValidationError(_("You have %(most)s views: delete one before.") % {"most": views.MOST_VIEWS})
        return name


@require_POST
def save_view(request: HttpRequest, site: Any = None) -> HttpResponse:
    """Keep the filters of the team desk by a name, or delete a view of one's own."""
    user: Any = request.user
    if not user.has_perm("delayedq_desk.view_item"):
        raise PermissionDenied
    filters = views.filters_in(request.POST)
    if (pk := id_in(request.POST.get("delete", ""))) is not None:
        SavedView.objects.filter(user=user, pk=pk).delete()
        return views.back_to_team(request)
    form = SaveViewForm(request.POST, user=user)
    if not form.is_valid():
        return views.team_page(request, site, status=422, saving=form)
    kept = {"queue": filters.queue, "only": filters.only, "text": filters.text}
    view, _is_new = SavedView.objects.update_or_create(user=user, name=form.cleaned_data["name"], defaults=kept)
    messages.success(request, _("Saved: %(name)s.") % {"name": view.name})
    return views.back_to_team(request)
