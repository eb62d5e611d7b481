"""What the pages of the desk ask."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from django import forms
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission, PermissionsMixin
from django.db.models import Q
from django.forms.fields import InvalidJSONInput
from django.utils import timezone
from django.utils.translation import gettext_lazy

from delayedq.desk.models import Comment, DeskQueue
from delayedq.desk.rules import active_users

logger = logging.getLogger("delayedq")

#: At most this many people are offered to assign an item to.
OFFERED = 200


class ResultField(forms.JSONField):
    """Refuses also what is JSON, but which Python does not read: numbers of thousands of digits, extreme nesting."""

    def to_python(self, value: Any) -> Any:
        try:
            return super().to_python(value)
        except (ValueError, RecursionError):
            raise forms.ValidationError(
                self.error_messages["invalid"], code="invalid", params={"value": value}
            ) from None

    def bound_data(self, data: Any, initial: Any) -> Any:
        try:
            return super().bound_data(data, initial)
        except (ValueError, RecursionError):
            return InvalidJSONInput(data)


class ResultForm(forms.Form):
    """The decision of a task that has no form of its own."""

    value = ResultField(label=gettext_lazy("Result"), help_text=gettext_lazy("As JSON."), required=False)

    def result(self) -> Any:
        return self.cleaned_data["value"]

    @staticmethod
    def from_result(result: Any) -> dict[str, Any]:
        return {"value": result}


def initial_of(form: Any, result: Any) -> dict[str, Any] | None:
    """What a new form begins with, where this was decided; None: nothing.

    The result of a form that makes it by its own `result()` is no data of it: its `from_result(result)` says what is.
    """
    try:
        given = form.from_result(result) if hasattr(form, "from_result") else result
    except Exception:
        logger.exception("%s.from_result has failed.", form.__name__)
        return None
    is_data = isinstance(given, Mapping) and (hasattr(form, "from_result") or not hasattr(form, "result"))
    return dict(given) if is_data else None


class PostponeForm(forms.Form):
    until = forms.DateTimeField(
        label=gettext_lazy("Follow-up date"), widget=forms.DateTimeInput(attrs={"type": "datetime-local"}, format="%Y-%m-%dT%H:%M")
    )
    why = forms.CharField(label=gettext_lazy("Why"), max_length=2_000, required=False)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["until"].help_text = timezone.get_current_timezone_name()


class SendBackForm(forms.Form):
    why = forms.CharField(label=gettext_lazy("What is wrong"), max_length=2_000)


class AssignForm(forms.Form):
    """Offers who may work on the queue; anybody who is active may be entered, and is refused with the reason."""

    user: Any = forms.ModelChoiceField(queryset=None, label=gettext_lazy("Assign to"))

    def __init__(self, *args: Any, queue: str = "", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        field: Any = self.fields["user"]
        field.queryset = active_users()
        offered = sorted((str(user), user.pk) for user in offered_for(queue)[:OFFERED])
        field.widget.choices = [("", "-"), *((pk, name) for name, pk in offered)]


def offered_for(queue: str) -> Any:
    """The active users who have the permission to take items of this queue, in one statement."""
    users: Any = active_users()
    if not issubclass(get_user_model(), PermissionsMixin):
        return users
    known = Permission.objects.filter(codename="take_item", content_type__app_label="delayedq_desk")
    users = users.filter(Q(is_superuser=True) | Q(user_permissions__in=known) | Q(groups__permissions__in=known))
    closed = DeskQueue.objects.filter(queue=queue, groups__isnull=False).values_list("groups", flat=True)
    if groups := list(closed):
        users = users.filter(Q(is_superuser=True) | Q(groups__in=groups))
    return users.distinct()


class CommentForm(forms.ModelForm):  # type: ignore[type-arg]  # Django does not know arguments
    class Meta:
        model = Comment
        fields = ("text", "attachment")
        labels = {"text": gettext_lazy("Comment"), "attachment": gettext_lazy("File")}  # noqa: RUF012 - as Django writes it
        widgets = {"text": forms.Textarea(attrs={"rows": 3})}  # noqa: RUF012

    def clean(self) -> dict[str, Any]:
        given: dict[str, Any] = super().clean() or self.cleaned_data
        if not given.get("text") and not given.get("attachment"):
            self.add_error("text", forms.ValidationError(gettext_lazy("Write something, or add a file.")))
        return given
