"""Reply templates: texts that whoever decides an item may put into a field of the form, also without scripts."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from django import forms
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from delayedq.desk.decorator import DeskTask
from delayedq.desk.models import ReplyTemplate
from delayedq.tasks import registered

if TYPE_CHECKING:
    from django.http import HttpRequest

#: The name of the button that inserts a template.
INSERT = "dq-insert"
#: At most this many templates of a task are offered.
OFFERED = 200


class ChooseForm(forms.Form):
    """Which template is inserted. It is part of the form of the decision, which is sent without one."""

    use_required_attribute = False
    prefix = "dq"
    template = forms.ChoiceField(
        label=gettext_lazy("Reply template"), error_messages={"required": gettext_lazy("Choose a template.")}
    )

    def __init__(self, *args: Any, kind: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        rows = ReplyTemplate.objects.filter(kind=kind).order_by("name", "field", "pk")[:OFFERED]
        self.templates = {str(row.pk): row for row in rows}
        field: Any = self.fields["template"]
        named = Counter(row.name for row in self.templates.values())
        field.choices = [("", "-"), *((key, _named(row, named[row.name])) for key, row in self.templates.items())]


def _named(template: ReplyTemplate, number: int) -> str:
    """Its name; with its field, if several have that name."""
    return template.name if number == 1 else f"{template.name} ({template.field})"


def offered(kind: str) -> ChooseForm | None:
    """The form that chooses a template of this task; None: it has none."""
    form = ChooseForm(kind=kind)
    return form if form.templates else None


def filled(form_class: Any, request: HttpRequest, chosen: ChooseForm) -> Any:
    """A new form of the decision with what was typed so far, and the template that was chosen behind it.

    A template whose field the form has no more is refused in `chosen`. Files are to be chosen again: no page can.
    """
    sent = form_class(request.POST, request.FILES)
    typed = {
        name: field.bound_data(sent[name].data, None)
        for name, field in sent.fields.items()
        if not isinstance(field, forms.FileField)
    }
    template = chosen.templates[chosen.cleaned_data["template"]] if chosen.is_valid() else None
    if template is not None and template.field not in text_fields(sent):
        chosen.add_error("template", _no_field(sent))
        template = None
    form = form_class(initial=typed | ({} if template is None else _joined(sent, template, typed)))
    if template is not None:
        form.fields[template.field].widget.attrs |= {"autofocus": True, "dir": "auto"}
    return form


def _joined(form: Any, template: ReplyTemplate, typed: dict[str, Any]) -> dict[str, str]:
    """The text behind what was typed: in a paragraph of its own, where a field has several lines."""
    said = str(typed[template.field] or "").rstrip()
    between = "\n\n" if isinstance(form.fields[template.field].widget, forms.Textarea) else " "
    return {template.field: f"{said}{between}{template.text}" if said else template.text}


def text_fields(form: Any) -> list[str]:
    """The names of the fields of a form that take any text."""
    other = (forms.JSONField, forms.EmailField, forms.URLField, forms.UUIDField, forms.GenericIPAddressField)
    fields = form.fields.items()
    return [name for name, field in fields if isinstance(field, forms.CharField) and not isinstance(field, other)]


def desk_kinds() -> list[str]:
    """The paths of the desk tasks that are known here."""
    return sorted(path for path, task in registered.items() if isinstance(task, DeskTask))


def problems(kind: str, field: str, text: str) -> dict[str, str]:
    """Why no form of this task could take such a template, by the field that is wrong."""
    task = registered.get(kind)
    if not isinstance(task, DeskTask):
        return {"kind": _("It is no desk task any more.")}
    form = forms.Form() if task.desk.form is None else task.desk.form()
    if field not in text_fields(form):
        return {"field": _no_field(form)}
    most = getattr(form.fields[field], "max_length", None)
    if most is not None and len(text) > most:
        return {"text": _("The field takes at most %(most)s characters.") % {"most": most}}
    return {}


def _no_field(form: Any) -> str:
    names = ", ".join(text_fields(form))
    if not names:
        return _("The form of this task has no text field.")
    return _("The form of this task has no such text field. It has: %(names)s.") % {"names": names}
