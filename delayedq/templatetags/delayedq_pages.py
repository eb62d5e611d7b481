"""Tags for the templates of the admin: numbers, times, states and the names of tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django import template
from django.utils import timezone
from django.utils.translation import get_language, get_language_info, pgettext

from delayedq.admin import marks
from delayedq.admin.charts import count
from delayedq.admin.moments import script_words, when
from delayedq.operations.wording import visible

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from django.utils.safestring import SafeString

register = template.Library()
register.filter("count", count)
register.filter("visible", visible)
register.filter("pill", marks.pill)
register.filter("state_word", marks.state_word)
register.filter("task", marks.task)
register.filter("full_task", marks.full_task)
register.simple_tag(script_words)


@register.simple_tag(takes_context=True, name="when")
def when_(context: dict[str, Any], moment: datetime | None) -> SafeString | str:
    """`{% when moment %}`: the one way to show a time, compared with the `now` of the page."""
    return when(moment, context.get("now") or timezone.now())


@register.simple_tag(takes_context=True)
def what_goes_on(context: dict[str, Any]) -> dict[str, Any]:
    """What the index of the app shows besides its links: the search box, and the first screen of the dashboard, each to
    those who may see it.
    """
    from delayedq.admin.base import may
    from delayedq.admin.dashboard import now_of
    from delayedq.admin.find import things_of

    request = context["request"]
    if not things_of(request):
        return {}
    return {"can_find": True, **(now_of(request) if may(request, "view_dashboard") else {})}


@register.simple_tag
def language_of_texts() -> dict[str, str] | None:
    """The `lang` and `dir` of our texts if they are not in the language of the page, as there is no translation."""
    known = pgettext("the code of the language of these texts", "en")
    if known == (get_language() or known).partition("-")[0]:
        return None
    return {"lang": known, "dir": "rtl" if get_language_info(known)["bidi"] else "ltr"}


@register.filter
def at[Value](values: Sequence[Value], number: int) -> Value:
    return values[number]
