"""Pages for one message: edit its arguments, stop it, send a new one or a copy."""

from __future__ import annotations

import hashlib
import inspect
import json
from datetime import date, datetime, time
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode
from uuid import UUID

from django import forms
from django.contrib import messages
from django.core.exceptions import ValidationError
from django.http import Http404, HttpResponseRedirect
from django.urls import path, reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from delayedq.admin.ask import Ask, AskingAdmin, Reply, who_and_why
from delayedq.admin.base import demand, may
from delayedq.admin.choices import queue_field
from delayedq.admin.moments import Moment
from delayedq.compat import InvalidTask
from delayedq.core.bounds import KEY_LENGTH, is_storable
from delayedq.core.edits import HIGHEST_PRIORITY, LOWEST_PRIORITY
from delayedq.core.serialization import dumps, loads
from delayedq.exceptions import CannotRun, InvalidMessage
from delayedq.masking import masking_of
from delayedq.models import FinishedMessage, Message, with_renewals
from delayedq.operations.browsing import id_in
from delayedq.operations.edits import stop
from delayedq.operations.sending import Sending, bound, edit_arguments, is_sendable, offer_of, send
from delayedq.operations.wording import visible
from delayedq.tasks import parameters_of, registered

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from django.http import HttpRequest, HttpResponse
    from django.urls import URLPattern
    from django.utils.functional import _StrOrPromise as StrOrPromise

    from delayedq.models import Edit
    from delayedq.store.base import Store
    from delayedq.tasks import Task

# A form for the arguments of a task, made of its signature and annotations.
#
# An argument annotated with a simple type is entered as a text of that type, any other as JSON, as the payload has it.
# What is not touched keeps its exact value. A masked argument is not shown; if nothing is entered, it stays as it is.


#: Before the names of arguments in a form, which has other fields too.
PREFIX = "argument_"

#: By type: how a text is read as a value.
READ: dict[Any, Callable[[str], Any]] = {
    int: int,
    float: float,
    str: str,
    Decimal: Decimal,
    UUID: UUID,
    datetime: datetime.fromisoformat,
    date: date.fromisoformat,
    time: time.fromisoformat,
}


#: What they are called, and what is said of a text that is none.
TYPES: dict[type | None, StrOrPromise] = {
    int: gettext_lazy("A whole number."),
    float: gettext_lazy("A number."),
    str: gettext_lazy("A text."),
    Decimal: gettext_lazy("A decimal number."),
    UUID: gettext_lazy("A UUID."),
    datetime: gettext_lazy("A date and a time, with the offset from UTC: 2026-11-22T03:04:05+00:00."),
    date: gettext_lazy("A date: 2026-11-22."),
    time: gettext_lazy("A time: 03:04:05."),
}
WANTED: dict[type | None, StrOrPromise] = {
    int: gettext_lazy("This is not a whole number."),
    float: gettext_lazy("This is not a number."),
    Decimal: gettext_lazy("This is not a decimal number."),
    UUID: gettext_lazy("This is not a UUID."),
    datetime: gettext_lazy("This is not a date and a time."),
    date: gettext_lazy("This is not a date."),
    time: gettext_lazy("This is not a time."),
}


class ArgumentField(forms.CharField):
    """One argument. `given`: its present JSON value; ABSENT: it has none."""

    widget = forms.Textarea(attrs={"rows": 1, "cols": 60, "spellcheck": "false", "autocomplete": "off"})

    def __init__(self, parameter: inspect.Parameter, given: Any, *, is_masked: bool) -> None:
        self.parameter, self.given = parameter, given
        self.type = _type_of(parameter, given)
        self.shown = "" if given is ABSENT or is_masked else self._text_of(given)
        self.keeps_if_empty = is_masked and given is not ABSENT
        self.is_optional = parameter.default is not parameter.empty or parameter.kind in _MANY
        super().__init__(
            label=visible(parameter.name),
            required=False,
            strip=False,
            initial=self.shown,
            help_text=self._help(is_masked=is_masked),
        )

    def _text_of(self, given: Any) -> str:
        """The present value as a text. Escapes stay: what is entered must be what is seen."""
        if self.type is None:
            return json.dumps(given)
        value = loads(json.dumps(given))
        return value.isoformat() if isinstance(value, date | time) else str(value)

    def _help(self, *, is_masked: bool) -> str:
        said = [str(TYPES.get(self.type, _("JSON.")))]
        if is_masked:
            said.append(_("It is masked."))
        if self.keeps_if_empty:
            said.append(_("Empty: it stays as it is."))
        elif self.parameter.default is not self.parameter.empty and not is_masked:
            said.append(_("Empty: its default, %s.") % visible(repr(self.parameter.default)))
        return " ".join(said)

    def clean(self, value: Any) -> Any:
        """Its JSON value, or ABSENT. Raises ValidationError."""
        text = super().clean(value).replace("\r\n", "\n")
        if self.given is not ABSENT and (text == self.shown or (not text and self.keeps_if_empty)):
            return self.given
        if not text and self.is_optional:
            return ABSENT
        if not is_storable(text):
            raise ValidationError(_("A NUL or a lone surrogate can't be stored."))
        return self._read(text)

    def _read(self, text: str) -> Any:
        try:
            return json.loads(text) if self.type is None else json.loads(dumps(READ[self.type](text)))
        except (ValueError, RecursionError, InvalidOperation, InvalidMessage):
            raise ValidationError(WANTED.get(self.type, _("This is not JSON."))) from None


class _Absent:
    """No value: the argument is not passed."""


ABSENT = _Absent()

_MANY = {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}


class ArgumentForm(forms.Form):
    """Fields for the arguments of `task`; `given`: its present ones by name, as JSON values."""

    def __init__(self, task: Task[..., Any], given: Mapping[str, Any], data: Any = None, **options: Any) -> None:
        super().__init__(data, **options)
        self.task = task
        masking = masking_of(task.module_path)
        for name, parameter in _parameters(task).items():
            value = given.get(name, ABSENT)
            is_masked = masking is not None and (masking.masks(name) if value is ABSENT else masking.hides(name, value))
            self.fields[f"{PREFIX}{name}"] = ArgumentField(parameter, value, is_masked=is_masked)

    @property
    def arguments(self) -> dict[str, Any]:
        """What was entered, by name, as JSON values."""
        entered = {
            name.removeprefix(PREFIX): value for name, value in self.cleaned_data.items() if name.startswith(PREFIX)
        }
        return {name: value for name, value in entered.items() if value is not ABSENT}

    def says_the_same(self, given: Mapping[str, Any]) -> bool:
        """Whether nothing was changed. What is masked counts as changed if it was entered: a guess is not confirmed."""
        return self.arguments == given and not any(
            isinstance(field, ArgumentField) and field.keeps_if_empty and self.data.get(name)
            for name, field in self.fields.items()
        )

    def clean(self) -> dict[str, Any]:
        """Refuse what `enqueue` would."""
        cleaned: dict[str, Any] = super().clean() or {}
        if not self.errors:
            try:
                offer_of(self.task, self.arguments)
            except (TypeError, InvalidMessage, CannotRun) as error:
                raise ValidationError(visible(str(error))) from None
        return cleaned


def _parameters(task: Task[..., Any]) -> Mapping[str, inspect.Parameter]:
    """With annotations evaluated, as far as they can be."""
    parameters = parameters_of(task).parameters
    try:
        evaluated = inspect.signature(task.func, eval_str=True).parameters
    except Exception:  # noqa: BLE001 - whatever the names in them do
        return parameters
    return {name: evaluated.get(name, parameter) for name, parameter in parameters.items()}


def _type_of(parameter: inspect.Parameter, given: Any) -> type | None:
    """The type as which it is entered; None: JSON."""
    asked = parameter.annotation
    if parameter.kind in _MANY or not isinstance(asked, type) or asked not in READ:
        return None
    if isinstance(given, str) and visible(given) != given:
        return None  # JSON spells it out
    if given is ABSENT:
        return asked
    try:
        return asked if type(loads(json.dumps(given))) is asked else None
    except CannotRun:
        return None


# One message


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
        self.order_fields(
            [name for name in self.fields if name.startswith(PREFIX)] + ["at", "queue", "priority", "key"]
        )

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


def edited(edit: Edit | None, done: str, refused: str) -> Reply:
    """What is told of an edit; None: it was refused."""
    if edit is None:
        return Reply(refused, did=False, level=messages.ERROR)
    return Reply(done, logged=edit.description, of=edit, is_recorded=True)


class OneMessagePages(AskingAdmin):
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
        self.demand(request, "edit_payload", "view_payload")
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
            edit = edit_arguments(self.store, message, form.arguments, *who_and_why(request))
        done = _("The arguments of message %s are changed.") % message.pk
        refused = _("Nothing was changed: the message runs, has ended, or was changed meanwhile.")
        self.tell(request, edited(edit, done, refused))
        return HttpResponseRedirect(_url(message.pk))

    def _call(self, message: Message | FinishedMessage) -> tuple[Task[..., Any], dict[str, Any]]:
        """Its task, and its arguments by name. Raises Http404 if they can't be edited here."""
        try:
            return registered[message.kind], bound(message.kind, message.payload)
        except (KeyError, CannotRun):
            raise Http404("Its task is not registered here, or its arguments do not fit.") from None

    # Stop

    def stop_view(self, request: HttpRequest, message_id: int) -> HttpResponse:
        """Stop it, if the same attempt runs."""
        self.demand(request, "stop_message")
        message = self._live(message_id)
        seen, back = seen_text(message), _url(message.pk)
        said = _(
            "The message ends as cancelled, and is not run again. Its task is told when its lease is to be renewed, "
            "at most a third of LEASE from now: async tasks are cancelled, others see it in lease_lost and run on "
            "until they look. What it has done so far is not undone, and there is no undo of this."
        )

        def do() -> Reply:
            is_same = request.POST.get("seen") == seen
            edit = stop(self.store, message, *who_and_why(request)) if is_same else None
            done = _("Message %s is cancelled, and its task is told to stop.") % message.pk
            return edited(edit, done, _("Nothing was stopped: the attempt has ended, or another one runs."))

        title = _("Stop message %s?") % message.pk
        return self.ask(request, Ask(_("Stop"), title, said, back, is_destructive=True, seen=seen), do)

    # Send

    def send_view(self, request: HttpRequest) -> HttpResponse:
        """GET: choose a task (`?task=`) or a message to copy (`?copy=`), then a form. POST: send."""
        self.demand(request, "send_message")
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
            sent = send(self.store, form.sending(attempts), *who_and_why(request))
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
