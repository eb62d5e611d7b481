"""What is done to one message, or makes one: edit its arguments, stop it, send a new one or a copy."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from django import forms
from django.contrib import messages
from django.http import Http404, HttpResponseRedirect
from django.urls import path, reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from delayedq.admin.argument_form import ArgumentForm
from delayedq.admin.base import ReadOnlyAdmin, demand, may, visible
from delayedq.admin.choices import queue_field
from delayedq.admin.moments import Moment
from delayedq.compat import InvalidTask
from delayedq.core.edits import HIGHEST_PRIORITY, LOWEST_PRIORITY
from delayedq.core.limits import KEY_LENGTH
from delayedq.exceptions import CannotRun, InvalidMessage
from delayedq.models import FinishedMessage, Message, with_renewals
from delayedq.operations.arguments import bound, edit_arguments
from delayedq.operations.browsing import id_in
from delayedq.operations.sending import Sending, is_sendable, send
from delayedq.operations.stopping import stop
from delayedq.tasks import registered

if TYPE_CHECKING:
    from collections.abc import Iterator

    from django.http import HttpRequest, HttpResponse
    from django.urls import URLPattern

    from delayedq.models import Edit
    from delayedq.store.base import Store
    from delayedq.tasks import Task


class SendForm(ArgumentForm):
    """A message to be sent: its arguments, and where it waits."""

    at = Moment(label=gettext_lazy("Due"), required=False, help_text=gettext_lazy("Empty: now."))
    key = forms.CharField(
        label=gettext_lazy("Key"),
        required=False,
        strip=False,
        max_length=KEY_LENGTH,
        help_text=gettext_lazy("Empty: none."),
    )
    priority = forms.IntegerField(label=gettext_lazy("Priority"), min_value=LOWEST_PRIORITY, max_value=HIGHEST_PRIORITY)

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.fields["queue"] = queue_field(gettext_lazy("Queue"))

    def sending(self, max_attempts: int | None) -> Sending:
        """What was entered."""
        given = self.cleaned_data
        return Sending(
            self.task,
            self.arguments,
            given["at"],
            given["key"] or None,
            given["queue"],
            given["priority"],
            max_attempts,
        )


class OneMessagePages(ReadOnlyAdmin):
    """Pages of the admin of live messages."""

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view
        return [
            path("send/", view(self.send_view), name="delayedq_message_send"),
            path("<int:message_id>/arguments/", view(self.arguments_view), name="delayedq_message_arguments"),
            path("<int:message_id>/stop/", view(self.stop_view), name="delayedq_message_stop"),
            *super().get_urls(),
        ]

    # Edit the arguments

    def arguments_view(self, request: HttpRequest, message_id: int) -> HttpResponse:
        """GET: a form. POST: edit, if the message waits and is as it was when the form was shown."""
        self.demand_view(request)
        demand(request, "edit_payload")
        demand(request, "view_payload")
        message = self._live(message_id)
        task, given = self._call(message)
        form = ArgumentForm(task, given, request.POST or None)
        if request.method == "POST" and form.is_valid() and form.says_the_same(given):
            form.add_error(None, _("Nothing differs from what it has."))
        elif request.method == "POST" and form.is_valid():
            return self._edit_arguments(request, message, form)
        title = _("Edit the arguments of message %s") % message.pk
        context = {"form": form, "back": _url(message.pk), "seen": seen_text(message), "verb": _("Save")}
        return self.page(request, "arguments.html", title, context)

    def _edit_arguments(self, request: HttpRequest, message: Message, form: ArgumentForm) -> HttpResponse:
        edit = None
        if request.POST.get("seen") == seen_text(message):
            edit = edit_arguments(self.store, message, form.arguments, request.user.get_username())
        done = _("The arguments of message %s are changed.") % message.pk
        refused = _("Nothing was changed: the message runs, has ended, or was changed meanwhile.")
        return self._told(request, message, edit, done=done, refused=refused)

    def _told(
        self, request: HttpRequest, message: Message, edit: Edit | None, *, done: str, refused: str
    ) -> HttpResponse:
        """Log the edit and say what is done, or that it was refused; and back to the message."""
        if edit is None:
            messages.error(request, refused)
        else:
            self.log_change(request, edit, edit.description)
            messages.success(request, done)
        return HttpResponseRedirect(_url(message.pk))

    def _call(self, message: Message | FinishedMessage) -> tuple[Task[..., Any], dict[str, Any]]:
        """Its task, and its arguments by name. Raises Http404 if they can't be edited here."""
        try:
            return registered[message.kind], bound(message.kind, message.payload)
        except (KeyError, CannotRun):
            raise Http404("Its task is not registered here, or its arguments do not fit.") from None

    # Stop

    def stop_view(self, request: HttpRequest, message_id: int) -> HttpResponse:
        """GET: ask for confirmation. POST: stop it, if the same attempt runs."""
        self.demand_view(request)
        demand(request, "stop_message")
        message = self._live(message_id)
        if request.method == "POST":
            return self._stop(request, message)
        said = _(
            "The message ends as cancelled, and is not run again. Its task is told when its lease is to be renewed, "
            "at most a third of LEASE from now: async tasks are cancelled, others see it in lease_lost and run on "
            "until they look. What it has done so far is not undone, and there is no undo of this."
        )
        context = {"said": said, "verb": _("Stop"), "back": _url(message.pk), "seen": seen_text(message)}
        return self.page(request, "confirm_one.html", _("Stop message %s?") % message.pk, context)

    def _stop(self, request: HttpRequest, message: Message) -> HttpResponse:
        edit = None
        if request.POST.get("seen") == seen_text(message):
            edit = stop(self.store, message, request.user.get_username())
        done = _("Message %s is cancelled, and its task is told to stop.") % message.pk
        refused = _("Nothing was stopped: the attempt has ended, or another one runs.")
        return self._told(request, message, edit, done=done, refused=refused)

    # Send

    def send_view(self, request: HttpRequest) -> HttpResponse:
        """GET: choose a task (`?task=`) or a message to copy (`?copy=`), then a form. POST: send."""
        self.demand_view(request)
        demand(request, "send_message")
        copied = self._copied(request)
        if copied is None and request.GET.get("task") not in registered:
            tasks = sorted(path for path, task in registered.items() if is_sendable(task, self.store))
            return self.page(request, "send.html", _("Send a message"), tasks=tasks)
        task, given = (registered[request.GET["task"]], {}) if copied is None else self._call(copied)
        initial = _initial(task, copied)
        form = SendForm(task, given, request.POST or None, initial=initial)
        if request.method == "POST" and form.is_valid() and (sent := self._send(request, form, copied)):
            return sent
        back = reverse("admin:delayedq_message_changelist") if copied is None else _url(copied.pk)
        title = _("Send a message of %s") % visible(task.name)
        return self.page(request, "arguments.html", title, {"form": form, "back": back, "verb": _("Send")})

    def _send(
        self, request: HttpRequest, form: SendForm, copied: Message | FinishedMessage | None
    ) -> HttpResponse | None:
        attempts = None if copied is None else copied.max_attempts
        try:
            sent = send(self.store, form.sending(attempts), request.user.get_username())
        except (InvalidMessage, InvalidTask, CannotRun, TypeError) as error:
            form.add_error(None, visible(str(error)))
            return None
        self.log_addition(request, sent.edit, sent.edit.description)
        messages.success(request, _("Message %s is sent.") % sent.id)
        return HttpResponseRedirect(_url(sent.id))

    def _copied(self, request: HttpRequest) -> Message | FinishedMessage | None:
        """The message that the address asks to copy, live or ended. Raises Http404."""
        text = request.GET.get("copy")
        if text is None:
            return None
        demand(request, "view_payload")
        return self._message(text, Message) or self._message(text, FinishedMessage) or _missing(text)

    def _message[Row: (Message, FinishedMessage)](self, text: str, model: type[Row]) -> Row | None:
        id_ = id_in(text)
        return None if id_ is None else model._default_manager.using(self.store.alias).filter(id=id_).first()  # noqa: SLF001

    def _live(self, message_id: int) -> Message:
        found = self._message(str(message_id), Message) or _missing(str(message_id))
        return with_renewals([found], self.store.now(), self.store.alias)[0]


def links_of(
    request: HttpRequest, message: Message | FinishedMessage, store: Store, *, runs: bool = False
) -> Iterator[tuple[str, str]]:
    """What the user may do to this message on a page of its own: labels and addresses."""
    live, known = isinstance(message, Message), message.kind in registered
    reads = may(request, "view_payload")
    if live and known and reads and not runs and may(request, "edit_payload"):
        yield _("Edit arguments"), reverse("admin:delayedq_message_arguments", args=[message.pk])
    if live and runs and may(request, "stop_message"):
        yield _("Ask it to stop"), reverse("admin:delayedq_message_stop", args=[message.pk])
    if known and reads and may(request, "send_message") and is_sendable(registered[message.kind], store):
        yield _("Send a copy"), f"{reverse('admin:delayedq_message_send')}?{urlencode({'copy': message.pk})}"


def _missing(text: str) -> Any:
    raise Http404(f"There is no message {text[:20]}.")


def _url(id_: int) -> str:
    return reverse("admin:delayedq_message_change", args=[id_])


def _initial(task: Task[..., Any], copied: Message | FinishedMessage | None) -> dict[str, Any]:
    if copied is None:
        return {"queue": task.queue_name, "priority": task.priority}
    return {"queue": copied.queue, "priority": copied.priority}


def seen_text(message: Message) -> str:
    """What a form carries to say which state of the message it was made of."""
    digest = hashlib.sha256(message.payload.encode(errors="surrogatepass")).hexdigest()
    return f"{message.generation}.{message.attempt}.{digest}"
