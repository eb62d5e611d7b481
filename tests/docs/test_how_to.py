"""The pages of docs/how-to/: the blocks of each are one module of a small shop, which runs on each database."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
from django.db import transaction

from delayedq.tasks import registered
from tests import shop
from tests.shop import models

PAGES = Path(__file__).parents[2] / "docs" / "how-to"
NAMES = sorted(page.stem for page in PAGES.glob("*.md") if page.stem != "README")


def blocks(page):
    return re.findall(r"^```python\n(.*?)^```$", (PAGES / f"{page}.md").read_text(), re.DOTALL | re.MULTILINE)


@pytest.fixture
def as_module(alias, monkeypatch):
    """Runs code as the `tasks.py` of the shop, whose only database is `alias`; its tasks are forgotten afterwards."""
    monkeypatch.setattr(transaction, "DEFAULT_DB_ALIAS", alias)
    monkeypatch.setitem(sys.modules, "shop", shop)
    monkeypatch.setitem(sys.modules, "shop.models", models)
    before = set(registered)

    def run(code, name):
        made = ModuleType("shop.tasks")
        monkeypatch.setitem(sys.modules, made.__name__, made)
        exec(compile(code, name, "exec"), made.__dict__)

    yield run
    for path in set(registered) - before:
        del registered[path]


def test_the_models_are_those_that_the_tests_use():
    assert blocks("README") == [Path(models.__file__).read_text()]


def test_the_list_names_each_page():
    listed = re.findall(r"^- \[.+\]\(([\w-]+)\.md\)", (PAGES / "README.md").read_text(), re.MULTILINE)
    assert sorted(listed) == NAMES


@pytest.mark.parametrize("page", NAMES)
def test_the_code_of_each_page_does_what_the_page_says(as_module, page):
    code = "\n".join(blocks(page))
    assert "assert " in code
    as_module(code, f"{page}.md")
