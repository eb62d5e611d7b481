"""What the pages of the desk ask."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib.auth import get_user_model
from django.utils.translation import gettext_lazy as _

from delayedq.desk.models import Comment


class PostponeForm(forms.Form):
    until = forms.DateTimeField(
        label=_("Follow-up date"), widget=forms.DateTimeInput(attrs={"type": "datetime-local"}, format="%Y-%m-%dT%H:%M")
    )
    why = forms.CharField(label=_("Why"), max_length=2_000, required=False)


class SendBackForm(forms.Form):
    why = forms.CharField(label=_("What is wrong"), max_length=2_000)


class AssignForm(forms.Form):
    user: Any = forms.ModelChoiceField(queryset=None, label=_("Assign to"))

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["user"].queryset = get_user_model().objects.filter(is_active=True)  # type: ignore[attr-defined]


class CommentForm(forms.ModelForm):  # type: ignore[type-arg]  # Django does not know arguments
    class Meta:
        model = Comment
        fields = ("text", "attachment")
