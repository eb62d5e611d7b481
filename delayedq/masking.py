"""Mask what is sensitive wherever delayedq shows or logs it: arguments, results and errors of sensitive tasks.

`@task(sensitive=["token"])` masks these arguments, `sensitive=True` all of them and the result ("return" in the list
masks the result, too). Django's `sensitive_variables` counts like the list. The texts of errors are searched for the
values of masked arguments before they are stored or logged. `DELAYEDQ["REDACT"]`, a callable or its dotted path,
decides in addition:

    def redact(kind: str, name: str, value: object) -> object:
        '''`name`: of the argument; "return" for a result, "raise" for the text of an error or a traceback.'''

`value` is a JSON value (as the payload has it), and what it returns is shown. If it fails, the value is masked.

What is masked is stored as it is: tasks need it. See `shown` for whole messages.
"""

from __future__ import annotations

import json
import logging
from copy import copy
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, cast

from django.utils.module_loading import import_string

from delayedq.conf import get_settings
from delayedq.core.masking import MASK, arguments_of, masked_call, secrets_in, without
from delayedq.core.signatures import parameter_names, positional_names, takes_any_name
from delayedq.exceptions import INTERRUPTIONS
from delayedq.tasks import registered

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from delayedq.models import FinishedMessage, Message

    Redact = Callable[[str, str, Any], Any]

logger = logging.getLogger("delayedq")

#: Names that no parameter can have: they are keywords of Python.
RETURN, RAISE = "return", "raise"
#: What the record of an error has.
RECORDED = frozenset(
    {"attempt", "failed_at", "seconds", "worker", "exception", "message", "traceback", "processor_seconds"}
)


@dataclass(frozen=True, slots=True)
class Masking:
    """How the messages of one kind are shown.

    `names`: of what is masked; None: everything. `redact`: that of the settings. `positional`: the names of the
    positional parameters. `known`: the names that its task takes; None: any.
    """

    kind: str
    names: frozenset[str] | None = frozenset()
    redact: Redact | None = None
    positional: Sequence[str] = ()
    known: frozenset[str] | None = None

    def masks(self, name: str) -> bool:
        """Whether a value of this name is masked. So is what a sensitive task does not take (any more)."""
        if not self.names:
            return self.names is None
        return name in self.names or (self.known is not None and name not in {*self.known, RETURN})

    def value(self, name: str, value: Any) -> Any:
        """A JSON value of this name as it is shown."""
        if self.masks(name):
            return MASK
        return value if self.redact is None else self._redacted(name, value)

    def hides(self, name: str, value: Any) -> bool:
        """Whether a JSON value of this name is not shown as it is."""
        return self.masks(name) or bool(self.value(name, value) != value)

    def _redacted(self, name: str, value: Any) -> Any:
        assert self.redact is not None
        try:
            shown = self.redact(self.kind, name, value)
            json.dumps(shown)
        except INTERRUPTIONS:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it raises may quote the value
            logger.error("DELAYEDQ['REDACT'] failed for %r of %s: %s", name, self.kind, type(error).__name__)  # noqa: TRY400
            return MASK
        return shown

    def payload(self, text: str) -> str:
        """A payload as it is shown."""
        try:
            return json.dumps(masked_call(json.loads(text), self.positional, self.value))
        except (ValueError, RecursionError):
            return json.dumps(MASK)

    def result(self, text: str) -> str:
        try:
            return json.dumps(self.value(RETURN, json.loads(text)))
        except (ValueError, RecursionError):
            return json.dumps(MASK)

    def metadata(self, text: str) -> str:
        """Metadata is shown unless everything is masked; then only the name of its schedule is."""
        if self.names is not None:
            return text
        try:
            about = json.loads(text)["cron"]
        except (ValueError, RecursionError, TypeError, LookupError):
            return json.dumps(MASK)
        return json.dumps({"cron": about, MASK: MASK})

    # Errors

    def text_of(self, payload: str | None) -> Callable[[str], str]:
        """A function for the texts of errors of a message with this payload; None: it is not known."""
        mask = self._without_secrets(payload)
        if self.redact is None:
            return mask
        return lambda text: str(self._redacted(RAISE, mask(text)))

    def _without_secrets(self, payload: str | None) -> Callable[[str], str]:
        if payload is None or self.names == frozenset():
            return str
        try:
            given = arguments_of(json.loads(payload), self.positional)
            return without(secret for name, value in given if self.masks(name) for secret in secrets_in(value))
        except (ValueError, RecursionError):
            return lambda _: MASK

    def errors(self, text: str, payload: str | None) -> str:
        """Error records as they are shown; one that can't be read is masked."""
        mask = self.text_of(payload)
        try:
            records = json.loads(text)
            return json.dumps([_with_texts(record, mask) for record in records if isinstance(record, dict)])
        except (ValueError, RecursionError, TypeError):
            return "[]"

    def error(self, line: str, payload: str | None) -> str:
        """The line of a dead letter's error as it is shown; its class stays."""
        name, colon, said = line.partition(":")
        return name + colon + (said and f" {self.text_of(payload)(said.strip())}")


class Hidden(Masking):
    """For those who may not see payloads: no argument, no result and no text of an error."""

    __slots__ = ()

    def errors(self, text: str, payload: str | None) -> str:
        """Of what other code has recorded, nothing but what our own records have."""
        records = json.loads(super().errors(text, payload))
        return json.dumps([{name: value for name, value in one.items() if name in RECORDED} for one in records])

    def text_of(self, payload: str | None) -> Callable[[str], str]:  # noqa: ARG002
        return lambda text: text and MASK


def _with_texts(record: dict[str, Any], mask: Callable[[str], str]) -> dict[str, Any]:
    texts = {name: mask(str(record[name])) for name in ("message", "traceback") if record.get(name)}
    lines = record.get("log")
    return {**record, **texts, **({"log": [mask(str(line)) for line in lines]} if isinstance(lines, list) else {})}


def masking_of(kind: str) -> Masking | None:
    """How messages of this kind are shown; None: as they are."""
    task, chosen = registered.get(kind), redact()
    sensitive = False if task is None else task.sensitive
    if sensitive is False and chosen is None:
        return None
    if task is None:
        return Masking(kind, redact=chosen)
    function = task.func, task.takes_context
    known = None if takes_any_name(*function) else frozenset(parameter_names(*function))
    names = None if sensitive is True else frozenset(sensitive or ())
    return Masking(kind, names, chosen, positional_names(*function), known)


def hidden(kind: str) -> Masking:
    """How messages of this kind are shown to those who may not see payloads."""
    task = registered.get(kind)
    return Hidden(kind, None, None, () if task is None else positional_names(task.func, task.takes_context))


def error_text(kind: str, payload: str) -> Callable[[str], str]:
    """A function that masks the text of an error, or a traceback, of a message with this payload."""
    masking = masking_of(kind)
    return str if masking is None else masking.text_of(payload)


def shown[Row: Message | FinishedMessage](message: Row, *, payload: bool = True) -> Row:
    """A message as it may be shown: a copy with what is masked; the same if nothing is.

    `payload` False: the reader has no permission `view_payload`. Columns that were not read stay unread; of
    `payload_start`, the beginning of a payload, nothing is shown unless it is all of it.
    """
    masking = masking_of(message.kind) if payload else hidden(message.kind)
    if masking is None:
        return message
    masked, unread = copy(message), message.get_deferred_fields()
    # A list has read only its beginning: if that is not all, it can't be searched for secrets, and errors are masked.
    given = getattr(message, "payload_start", None) if "payload" in unread else message.payload
    for name in ("payload", "payload_start", "metadata", "result", "errors", "error"):
        text = None if name in unread else getattr(message, name, None)
        if text is not None:
            mask = getattr(masking, name.removesuffix("_start"))
            setattr(masked, name, mask(text, given) if name.startswith("error") else mask(text))
    return masked


def masks_anything() -> bool:
    """Whether anything of any message is masked for those who may see payloads."""
    return redact() is not None or any(task.sensitive for task in registered.values())


def redact() -> Redact | None:
    """`DELAYEDQ["REDACT"]`. Raises ImportError if it is a path that leads nowhere."""
    given = get_settings().REDACT
    return _imported(given) if isinstance(given, str) else given


@cache
def _imported(path: str) -> Redact:
    return cast("Redact", import_string(path))
