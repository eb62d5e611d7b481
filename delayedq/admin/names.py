"""The names that a field suggests: a page of its own, so that a list with 500 tasks does not carry all their names.

Where scripts run, the field fetches that page when it is entered, and suggests its names. Without them the page is a
list of links.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import urlencode

from django.http import Http404
from django.urls import path
from django.utils.html import format_html
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from delayedq.admin.base import ReadOnlyAdmin
from delayedq.admin.choices import WithSuggestions
from delayedq.operations.reading import lanes_of
from delayedq.operations.wording import visible
from delayedq.operations.workers import all_workers
from delayedq.store import operator_store
from delayedq.tasks import registered

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from django.http import HttpRequest, HttpResponse
    from django.urls import URLPattern
    from django.utils.safestring import SafeString

    from delayedq.store.base import Store

    type Named = Mapping[str, Callable[[Store], Collection[str]]]

#: Up to so many names are choices of a field; of more, a page has them.
FEW = 15


def kinds(store: Store) -> set[str]:
    """The tasks that are registered, and those that have messages with a key."""
    return {*registered, *operator_store(store.alias).keyed_kinds()}


def queues(store: Store) -> set[str]:
    return {lane.queue for lane in lanes_of(store)}


def workers(store: Store) -> set[str]:
    return {worker.name for worker in all_workers(store)}


TITLES = {
    "queue": gettext_lazy("Queues"),
    "kind": gettext_lazy("Tasks"),
    "task": gettext_lazy("Tasks"),
    "worker": gettext_lazy("Workers"),
}


class Suggested(WithSuggestions):
    """The same, but its names are on the page `names/?of=` beside that of the field.

    given: the other filters, which links of that page keep.
    """

    def __init__(self, of: str, given: Mapping[str, str] | None = None) -> None:
        super().__init__()
        self.names = []
        self.of, self.given = of, {name: value for name, value in (given or {}).items() if name not in {of, "after"}}

    def render(self, name: str, value: Any, attrs: Any = None, renderer: Any = None) -> SafeString:
        url = f"names/?{urlencode({'of': self.of, **self.given})}"
        field = super().render(name, value, {**(attrs or {}), "data-names": url}, renderer)
        words, title = _("All names"), TITLES[self.of]
        link = format_html('<a class="dq-remark" href="{}" aria-label="{}: {}">{}</a>', url, words, title, words)
        return format_html("{} {}", field, link)


class NamePages(ReadOnlyAdmin):
    """A part of an admin whose fields suggest names. `named`: the names, by the field that has them."""

    named: ClassVar[Named] = {"queue": queues, "kind": kinds, "worker": workers}
    #: The page that takes a name, from the list of this admin.
    takes_names = ""

    def get_urls(self) -> list[URLPattern]:
        view, name = self.admin_site.admin_view(self.names_view), f"delayedq_{self.opts.model_name}_names"
        return [path("names/", view, name=name), *super().get_urls()]

    def names_view(self, request: HttpRequest) -> HttpResponse:
        """`?of=`: the field. Each name is a link to the list with this filter, and with the others of the address."""
        self.demand_view(request)
        of = request.GET.get("of", "")
        if of not in self.named:
            raise Http404(_("There is no filter %(name)s.") % {"name": visible(of[:20])})
        rest = request.GET.copy()
        for name in ("of", of):
            rest.pop(name, None)
        context = {
            "names": sorted(self.named[of](self.store)),
            "of": of,
            "back": f"../{self.takes_names}?{rest.urlencode()}{'&' if rest else ''}",
        }
        return self.page(request, "names.html", str(TITLES[of]), context)
