"""The code of all pages: what no test of a page runs is at least Python, and imports names that there are."""

from __future__ import annotations

import ast
import re
import shlex
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path

import pytest
from django.core.management import get_commands, load_command_class

from delayedq.models import FinishedMessage, Message
from delayedq.testing import run_due
from tests.app.tasks import remind
from tests.missing import missing

ROOT = Path(__file__).parents[2]
PAGES = {str(page.relative_to(ROOT)): page.read_text() for page in [ROOT / "README.md", *ROOT.glob("docs/**/*.md")]}
BLOCK = re.compile(r"^```(\w+)\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)
#: What ends a command in a shell.
ENDS = {"|", "||", "&&", "<", ">", ";"}


def blocks(page, *languages):
    return [code for language, code in BLOCK.findall(PAGES[page]) if language in languages]


def commands(page):
    """The words after `manage.py` of each command of a page that is one of ours."""
    for code in blocks(page, "sh", "console", "text"):
        for line in code.replace("\\\n", " ").splitlines():
            if not (named := re.search(r"manage\.py (\w+)", line)) or named[1] not in OURS:
                continue
            command = shlex.split(line[named.start(1) :], comments=True)
            yield command[: next((place for place, word in enumerate(command) if word in ENDS), None)]


OURS = {name for name, app in get_commands().items() if app.startswith("delayedq")}
COMMANDS = [(page, words) for page in PAGES for words in commands(page)]
PYTHON = [(page, code) for page in PAGES for code in blocks(page, "python")]


@pytest.mark.parametrize(("page", "words"), COMMANDS, ids=lambda one: one if isinstance(one, str) else shlex.join(one))
def test_each_command_takes_its_flags(page, words):
    """They are only parsed here; what they do is tested with them."""
    name, *given = words
    given = [word.replace("events", "default") for word in given]  # the second database of a page
    load_command_class(get_commands()[name], name).create_parser("manage.py", name).parse_args(given)


def test_commands_and_code_are_found():
    assert len(COMMANDS) > 40
    assert {page for page, _ in COMMANDS} >= {"README.md", "docs/tutorial.md", "docs/pipeline.md", "docs/operate.md"}
    assert len(PYTHON) > 120


def of_page(page):
    return pytest.param(page, marks=[pytest.mark.spark] if page.startswith("docs/pipeline") else [])


@pytest.mark.parametrize("page", [of_page(page) for page in sorted({page for page, _ in PYTHON})])
def test_code_is_python_and_imports_what_there_is(page):
    if page.startswith("docs/pipeline") and not find_spec("deltalake"):
        missing("pyspark")
    for node in ast.walk(ast.parse("\n".join(blocks(page, "python")))):
        if isinstance(node, ast.ImportFrom) and node.module.split(".")[0] == "delayedq":
            exec(ast.unparse(node), {})


def test_rows_are_found_as_the_reference_shows(run):
    remind.using(metadata={"batch": "2026-11", "source": "app"}).enqueue(7)
    (shown,) = [code for code in blocks("docs/reference.md", "python") if "called_with" in code]
    first, *lines = shown.splitlines()
    kept = [f"found.append({line})" if ".objects." in line else line for line in lines]
    found = []
    run(
        "shown",
        "\n".join([first, *kept]).replace(")  # given by position or by name)", "))"),
        remind=remind,
        found=found,
    )
    assert [[*rows] for rows in found] == [[*Message.objects.all()], [*Message.objects.all()], []]


def test_sensitive_arguments_are_masked_as_the_page_of_the_admin_shows(run):
    from delayedq import task

    tasks, redact = blocks("docs/admin-reference.md", "python")
    shown = run("shown", tasks, task=task)
    assert (shown.pay.sensitive, shown.log_in.sensitive) == (frozenset({"token", "card"}), True)
    assert run("other", redact).redact("shown.pay", "iban", "RO49") == "****"


def test_the_code_of_celery_runs_under_the_name_of_the_shim(run):
    (shown,) = blocks("docs/moving.md", "python")
    made = run("shown", shown.replace("self, order_id): ...", "self, order_id): return order_id"))
    assert [attempt.outcome for attempt in run_due()] == ["succeeded"]
    assert made.AsyncResult(made.result.id).result == 4711
    assert FinishedMessage.objects.count() == 1
    waiting = Message.objects.get()
    assert (waiting.queue, waiting.args) == ("money", [4712])
    assert waiting.scheduled_at > datetime.now(UTC)
