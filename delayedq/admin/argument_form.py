"""A form for the arguments of a task, made of its signature and annotations.

An argument annotated with a simple type is entered as a text of that type, any other as JSON, as the payload has it.
What is not touched keeps its exact value. A masked argument is not shown; if nothing is entered, it stays as it is.
"""

from __future__ import annotations

import inspect
import json
from datetime import date, datetime, time
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django import forms
from django.core.exceptions import ValidationError
from django.utils.translation import gettext as _

from delayedq.admin.base import visible
from delayedq.core.limits import is_storable
from delayedq.core.serialization import dumps, loads
from delayedq.exceptions import CannotRun, InvalidMessage
from delayedq.masking import masking_of
from delayedq.operations.arguments import offer_of
from delayedq.tasks import parameters_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from delayedq.tasks import Task

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
        said = [_("JSON.") if self.type is None else f"{self.type.__name__}."]
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
            wanted = "JSON" if self.type is None else self.type.__name__
            raise ValidationError(_("This is not %(type)s.") % {"type": wanted}) from None


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
