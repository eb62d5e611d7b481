"""docs/operate.md names every metric, and what it shows works."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest
from django.core.management import get_commands, load_command_class
from django.test import Client

from delayedq import metrics
from delayedq.management.telling import Exit
from delayedq.operations import doctor
from delayedq.operations.doctor import FINAL, HIDDEN, MIGRATIONS, UNCHECKED
from delayedq.operations.rules import Rule
from delayedq.pipeline import archived, scheduled
from delayedq.worker.tally import Counts

GUIDE = (Path(__file__).parents[1] / "docs" / "operate.md").read_text()


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL)


def test_the_guide_names_every_metric_and_no_other():
    families = [*metrics.of_workers(Counts()), *metrics._of_databases({})]
    known = {family.name + ("_total" if family.type == "counter" else "") for family in families}

    assert set(re.findall(r"`(delayedq_\w+)`", GUIDE)) == known


def test_the_view_of_the_guide_answers(store, settings):
    urls, *_ = blocks("python")
    exec(urls, given := {})
    settings.ROOT_URLCONF = tuple(given["urlpatterns"])

    assert b"delayedq_up" in Client().get("/metrics").content


def test_the_guide_names_every_condition_of_the_doctor():
    table = GUIDE.split("| Condition |")[1].split("\n\n")[0]
    source = "".join(Path(one.__file__).read_text() for one in (archived, scheduled, doctor))
    rules = map(str, set(Rule) - {Rule.ARCHIVE})  # the troubles of archives have conditions of their own
    known = {*re.findall(r'(?:Diagnosis|Trouble)\(\s*"(.*?)"', source), *rules, *FINAL, MIGRATIONS, UNCHECKED, HIDDEN}

    assert {word for row in table.splitlines() for word in re.findall(r"`(.*?)`", row.split("|")[1])} == known


def test_the_guide_names_every_exit_code():
    table = GUIDE.split("| Exit code |")[1].split("\n\n")[0]
    assert {int(code) for code in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)} == {*Exit, 2}


def commands():
    lines = [line for block in blocks("sh") for line in block.splitlines()]
    return [shlex.split(line.split("#")[0])[1:] for line in lines if "manage.py" in line]


@pytest.mark.parametrize("words", commands(), ids=shlex.join)
def test_every_command_of_the_guide_is_one(words):
    """It is only parsed here; what commands do is tested with them."""
    _, name, *arguments = words
    command = load_command_class(get_commands()[name], name)
    command.create_parser("manage.py", name).parse_args(arguments)


def test_the_probe_of_a_file_says_whether_it_is_new(tmp_path):
    probe = re.search(r"`(find .*?)`", GUIDE)[1].replace("\\|", "|")
    path = tmp_path / "worker"
    path.touch()
    tried = [subprocess.run(["sh", "-c", probe.replace("/run/worker", str(path))], check=False).returncode]
    subprocess.run(["touch", "-d", "-1 minute", path], check=True)
    tried += [subprocess.run(["sh", "-c", probe.replace("/run/worker", str(path))], check=False).returncode]

    assert tried == [0, 1]
