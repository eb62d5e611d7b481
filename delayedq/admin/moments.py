"""Times on the pages: one way to show them, and inputs that say their zone and how far away they are."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any

from django import forms
from django.core.exceptions import ValidationError
from django.utils import timezone
from django.utils.html import format_html
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from delayedq.core.bounds import EARLIEST
from delayedq.core.edits import LATEST
from delayedq.operations.wording import exact, relative, units

if TYPE_CHECKING:
    from django.utils.safestring import SafeString

#: What `datetime-local` reads and writes.
INPUT = "%Y-%m-%dT%H:%M:%S"


def when(moment: datetime | None, now: datetime) -> SafeString | str:
    """A `<time>` element: "in 3 h", and beside it date, time and zone; "-" for None."""
    if moment is None:
        return "-"
    return format_html(
        '<time datetime="{}"><b>{}</b> <span class="dq-exact">{}</span></time>',
        moment.isoformat(),
        relative(moment, now),
        exact(moment),
    )


def script_words() -> dict[str, Any]:
    """The words of the scripts, in the language of the page."""
    return {
        "units": units(),
        "now": _("now"),
        "ahead": _("in %(span)s") % {"span": "%s"},
        "ago": _("%(span)s ago") % {"span": "%s"},
        "live": _("Live: refreshed every %(seconds)s s") % {"seconds": "%s"},
        "added": _("Live: %(number)s new, marked") % {"number": "%s"},
        "held": _("Live: waits while messages are ticked"),
        "paused": _("Paused"),
        "failed": _("Not refreshed: the server does not answer"),
        "signed_out": _("Not refreshed: you are signed out"),
        "pause": _("Pause"),
        "resume": _("Resume"),
        "close": _("Close"),
        "open": _("Open as a page"),
        # Translators: a switch; / and p are keys
        "keys": _("Shortcuts: / search, p pause"),
        "keys_do": _("/ goes to the search, p halts a live list. A click switches both off or on."),
        "ticked": _("%(number)s ticked") % {"number": "%s"},
    }


class MomentInput(forms.DateTimeInput):
    """The browser's calendar, with the zone of what is entered and how far away it is."""

    def __init__(self) -> None:
        super().__init__(attrs={"type": "datetime-local", "step": "1"}, format=INPUT)

    def render(self, name: str, value: Any, attrs: Any = None, renderer: Any = None) -> SafeString:
        zone = timezone.get_current_timezone_name()
        return format_html(
            '<span class="dq-moment" data-zone="{}">{} <span class="dq-zone">{}</span>'
            ' <output class="dq-eta">{}</output></span>',
            zone,
            super().render(name, value, attrs, renderer),
            zone,
            _distance(value),
        )


def _distance(value: Any) -> str:
    """How far away a value of the input is, as local time; "" if it is none."""
    with suppress(ValueError, TypeError, OverflowError):
        moment = value if isinstance(value, datetime) else datetime.fromisoformat(value)
        aware = moment if timezone.is_aware(moment) else timezone.make_aware(moment)
        return relative(aware, timezone.now())
    return ""


_YEARS = {"first": EARLIEST.year, "last": LATEST.year}


class Moment(forms.DateTimeField):
    """A date and time in the current time zone, entered with the browser's calendar."""

    widget = MomentInput
    default_error_messages = {  # noqa: RUF012 - as in the base class
        "invalid": gettext_lazy("Enter a date and a time, such as 2026-11-22 03:00."),
    }

    def clean(self, value: Any) -> Any:
        """Refuse what a database can't store."""
        moment = super().clean(value)
        if moment is not None and not EARLIEST <= moment <= LATEST:
            raise ValidationError(_("That is before the year %(first)s or after %(last)s.") % _YEARS)
        return moment

    def prepare_value(self, value: Any) -> Any:
        """Convert a value with offset and microseconds, as links contain it: `datetime-local` takes neither."""
        if isinstance(value, str):
            with suppress(ValidationError):
                value = self.to_python(value)
        return super().prepare_value(value)


class Until(Moment):
    """An upper bound that includes its whole second: the browser's input has no finer unit."""

    def clean(self, value: Any) -> Any:
        moment = super().clean(value)
        return moment and moment.replace(microsecond=999_999)
