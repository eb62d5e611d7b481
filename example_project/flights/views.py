"""The site: a departures board, and forms to add, delay and cancel a flight."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import messages
from django.shortcuts import get_object_or_404, redirect, render
from django.utils import timezone
from django.utils.formats import date_format
from django.views.decorators.http import require_http_methods, require_safe

from delayedq.compat import default_task_backend
from example_project.flights import departures, tasks
from example_project.flights.forms import CancelForm, DelayForm, FlightForm
from example_project.flights.models import LEAD, Flight

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import date, datetime

    from django.http import HttpRequest, HttpResponse

form_view = require_http_methods(["GET", "HEAD", "POST"])


@require_safe
def latest(request: HttpRequest) -> HttpResponse:  # noqa: ARG001
    """Redirect to the board of today, or of the last day that has flights."""
    day = Flight.objects.days().filter(day__lte=timezone.localdate()).last()
    return redirect("flights:board", day or timezone.localdate())


@require_safe
def board(request: HttpRequest, day: date) -> HttpResponse:
    days = Flight.objects.days()
    return render(
        request,
        "flights/board.html",
        {
            "day": day,
            "flights": Flight.objects.leaving_on(day).with_delivery().in_order(),
            "previous_day": days.filter(day__lt=day).last(),
            "next_day": days.filter(day__gt=day).first(),
        },
    )


@form_view
def report_all(request: HttpRequest) -> HttpResponse:
    """POST: write all reports again, unless somebody else has just asked for it; then show how far that has come."""
    if request.method != "POST":
        return render(request, "flights/progress.html")
    scheduled = tasks.report_all.schedule_at(timezone.now(), key="all", on_conflict="keep")
    if scheduled.id is None:  # it ended at this moment
        return redirect("flights:report_all")
    result: Any = default_task_backend.get_result(scheduled.id)
    return redirect("flights:progress", result.signed_id)


@require_safe
def progress(request: HttpRequest, token: str) -> HttpResponse:
    """A page that draws a bar: it asks `delayedq.views.status` once a second."""
    return render(request, "flights/progress.html", {"token": token})


@form_view
def add(request: HttpRequest) -> HttpResponse:
    form = FlightForm(_posted(request))
    if not form.is_valid():
        return _ask(request, form, "Add a flight", "Add")
    flight = form.save(commit=False)
    departures.announce(flight)
    return _done(request, flight, f"{flight} is on the board; the reminder goes at {_time(flight.remind_at)}.")


@form_view
def delay(request: HttpRequest, pk: int) -> HttpResponse:
    flight = get_object_or_404(Flight, pk=pk)
    form = DelayForm(flight, _posted(request))
    if not form.is_valid():
        return _ask(request, form, f"Delay {flight}", "Delay", flight)
    departure = form.cleaned_data["departure"]
    if departures.move(flight, departure) is None:
        return _done(request, flight, f"{flight} was cancelled meanwhile.")
    remind_at = departure - LEAD
    return _done(request, flight, f"{flight} leaves at {_time(departure)}; the reminder goes at {_time(remind_at)}.")


@form_view
def cancel(request: HttpRequest, pk: int) -> HttpResponse:
    flight = get_object_or_404(Flight, pk=pk)
    form = CancelForm(flight, _posted(request))
    if not form.is_valid():
        return _ask(request, form, f"Cancel {flight}?", "Cancel the flight", flight)
    departures.cancel(flight)
    return _done(request, flight, f"{flight} is cancelled; no reminder will be sent.")


def _posted(request: HttpRequest) -> Mapping[str, Any] | None:
    return request.POST if request.method == "POST" else None


def _ask(request: HttpRequest, form: Any, title: str, action: str, flight: Flight | None = None) -> HttpResponse:
    return render(request, "flights/form.html", {"form": form, "title": title, "action": action, "flight": flight})


def _done(request: HttpRequest, flight: Flight, what: str) -> HttpResponse:
    messages.success(request, what)
    return redirect("flights:board", flight.day)


def _time(instant: datetime) -> str:
    return date_format(timezone.localtime(instant), "H:i")
