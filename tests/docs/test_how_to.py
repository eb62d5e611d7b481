"""The pages of docs/how-to/ and docs/moving/: the blocks of each are one module of a shop, on each database."""

from __future__ import annotations

import re
import sys
import textwrap
from pathlib import Path
from types import ModuleType

import pytest
from django.db import transaction

from delayedq.tasks import registered
from tests import shop
from tests.shop import models

DOCS = Path(__file__).parents[2] / "docs"
NAMES = sorted(page.stem for page in (DOCS / "how-to").glob("*.md") if page.stem != "README")
MOVING = sorted(page.stem for page in (DOCS / "moving").glob("*.md"))


def blocks(page):
    return re.findall(r"^```python\n(.*?)^```$", (DOCS / f"{page}.md").read_text(), re.DOTALL | re.MULTILINE)


def listed(page, folder=""):
    """The pages of a folder to which a list on this page leads."""
    return re.findall(rf"^- \[.+\]\({folder}([\w-]+)\.md\)", (DOCS / page).read_text(), re.MULTILINE)


def in_a_method(test):
    """What a reader makes of the last block: its imports stand at the top, and the rest in a function."""
    lines = test.splitlines(keepends=True)
    imports = [line for line in lines if re.match(r"from \S+ import [^(]|import ", line)]
    rest = "".join(line for line in lines if line not in imports)
    return f"from shop.tasks import *\n{''.join(imports)}\ndef test():\n{textwrap.indent(rest, '    ')}"


@pytest.fixture
def as_module(alias, monkeypatch):
    """Runs code as the `tasks.py` of the shop, whose only database is `alias`; its tasks are forgotten afterwards."""
    monkeypatch.setattr(transaction, "DEFAULT_DB_ALIAS", alias)
    monkeypatch.setitem(sys.modules, "shop", shop)
    monkeypatch.setitem(sys.modules, "shop.models", models)
    before = set(registered)

    def run(code, page, name="shop.tasks"):
        made = ModuleType(name)
        monkeypatch.setitem(sys.modules, name, made)
        exec(compile(code, page, "exec"), made.__dict__)
        return made

    yield run
    for path in set(registered) - before:
        del registered[path]


def test_the_models_are_those_that_the_tests_use():
    assert blocks("how-to/README")[1:] == [Path(models.__file__).read_text()]


def test_the_settings_name_each_queue_and_each_app_that_a_page_uses():
    named = {"INSTALLED_APPS": []}
    exec(blocks("how-to/README")[0], named)
    code = "".join("".join(blocks(f"how-to/{name}")) for name in NAMES)
    used = set(re.findall(r'queue_name="(\w+)"', code))
    assert named["TASKS"]["default"]["QUEUES"] == sorted(used | {"default"})
    assert "delayedq.desk" in code
    assert {"delayedq", "delayedq.desk", "shop"} == set(named["INSTALLED_APPS"])


def test_the_list_names_each_page():
    assert sorted(listed("how-to/README.md")) == NAMES
    assert sorted(listed("moving.md", "moving/")) == MOVING


@pytest.mark.parametrize("page", [*(f"how-to/{name}" for name in NAMES), *(f"moving/{name}" for name in MOVING)])
def test_the_code_of_each_page_does_what_the_page_says(as_module, page):
    *code, test = blocks(page)
    assert "assert " in test
    as_module("\n".join(code), f"{page}.md")
    as_module(in_a_method(test), f"{page}.md", "shop.tests").test()
