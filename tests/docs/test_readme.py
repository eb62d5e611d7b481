"""README.md: its code runs, its links lead somewhere, and are absolute on the package index."""

from __future__ import annotations

import re
import sys
import tomllib
from datetime import timedelta
from pathlib import Path

import pytest
import yaml
from django.utils import timezone

from delayedq.models import Message

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
FACE, *USE = re.findall(r"^```python\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)
ADDRESS = "https://forge.example/owner/name"


@pytest.fixture
def links(monkeypatch):
    """The build step that makes links absolute."""
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    import absolute_links

    yield absolute_links
    del sys.modules["absolute_links"]


def test_its_first_example_creates_moves_and_cancels(run):
    departure = timezone.now() + timedelta(hours=3)
    run("shown", FACE, departure=departure, later=departure + timedelta(hours=1), timedelta=timedelta)
    assert [message.key for message in Message.objects.all()] == [None]  # what is due now; the other was cancelled


def test_its_project_works_as_it_is_printed(tmp_path, typed):
    typed("django-admin startproject site1 . && python manage.py startapp flights")
    settings, tasks, shell, tests = USE
    with (tmp_path / "site1" / "settings.py").open("a") as file:
        file.write(settings)
    for code in (tasks, tests):
        name = code.splitlines()[0].removeprefix("# ")
        (tmp_path / name).write_text(code)
    checked, served = re.findall(r"^```sh\n(python.*?)^```$", README, re.DOTALL | re.MULTILINE)
    assert "System check identified" in typed(checked)
    (tmp_path / "typed.py").write_text(shell.replace("seconds=5", "seconds=0"))  # so that nobody waits
    typed("python manage.py shell < typed.py")
    assert "Flight 7 departs in an hour." in typed(served.strip() + " --drain")
    assert "Ran 1 test" in typed("python manage.py test")


def test_there_is_one_picture():
    assert len(re.findall(r"^!\[.+\]\(.+\)$", README, re.MULTILINE)) == 1


def test_on_the_package_index_each_link_is_absolute(links):
    before, after = (re.findall(r"\]\(([^)]+)\)", text) for text in (README, links.absolute(README, ADDRESS, "v1")))
    assert len(before) == len(after) > 20
    assert all(link.startswith("https://") for link in after)
    of_files = [link.removeprefix(f"{ADDRESS}/").split("/v1/")[1].split("#")[0] for link in after if ADDRESS in link]
    assert len(of_files) > 20
    assert [path for path in of_files if not (ROOT / path).exists()] == []
    assert f"({ADDRESS}/raw/v1/docs/images/dashboard.png)" in links.absolute(README, ADDRESS, "v1")


def test_the_package_names_the_repository_that_publishes_it(links):
    text = links.PROJECT.read_text()
    before, after = (tomllib.loads(one) for one in (text, links.with_urls(text, ADDRESS, "v1")))
    urls = after["project"].pop("urls")
    assert after == before
    assert urls.keys() == {"Source", "Documentation", "Changelog", "Issues"}
    assert urls.pop("Issues") == f"{ADDRESS}/issues"
    assert all((ROOT / url.removeprefix(ADDRESS).removeprefix("/blob/v1/")).exists() for url in urls.values())


def test_each_extra_that_is_named_exists():
    there = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
    files = [
        *ROOT.glob("delayedq/**/*.py"),
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("docs/deploy/*"),
        ROOT / "README.md",
    ]
    named = [
        extra
        for file in files
        if file.is_file()
        for extras in re.findall(r"(?:delayedq|[\"']\.)\[([a-z0-9,]+)\]", file.read_text())
        for extra in extras.split(",")
    ]
    assert len(named) > 10
    assert set(named) <= there
    assert {"postgres", "mysql", "django52", "prometheus", "otel", "lake", "spark"} <= set(named)


def test_they_are_made_absolute_before_the_package_is_built():
    steps = yaml.safe_load((ROOT / ".github/workflows/publish.yml").read_text())["jobs"]["build"]["steps"]
    commands = [step.get("run", "") for step in steps]
    (made,) = [i for i, command in enumerate(commands) if "docs/absolute_links.py" in command]
    assert made < commands.index("python3 -m uv build")
