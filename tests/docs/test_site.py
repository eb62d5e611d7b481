"""What Sphinx does not warn of: pages that are in no list, versions that differ, and how pages become plain."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest

import delayedq

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


@pytest.fixture
def pages(monkeypatch):
    """The extension of the site."""
    monkeypatch.syspath_prepend(str(DOCS))
    import plain_pages

    yield plain_pages
    del sys.modules["plain_pages"], sys.modules["pictures"]


def test_every_page_is_listed_once(pages):
    index = [(DOCS / "index.md").read_text()]
    there = [str(page.relative_to(DOCS).with_suffix("")) for page in DOCS.rglob("*.md")]
    pages.list_others(SimpleNamespace(env=SimpleNamespace(found_docs=[*there, "new/page"])), "index", index)
    listed = [
        name
        for tree in re.findall(r"```\{toctree\}\n(.*?)```", index[0], re.DOTALL)
        for name in tree.splitlines()
        if name and not name.startswith(":")
    ]
    assert sorted([*listed, "index"]) == sorted([*there, "new/page"])


def test_links_of_the_readme_lead_somewhere():
    links = re.findall(r"\]\(([^)#\s]+)[^)]*\)", (ROOT / "README.md").read_text())
    assert len(links) > 20
    assert [link for link in links if "://" not in link and not (ROOT / link).exists()] == []


def test_the_versions_agree():
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"] == delayedq.__version__


def test_the_table_of_versions_says_what_the_package_says():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (row,) = re.findall(rf"^\| {delayedq.__version__} .+$", (DOCS / "deploy" / "upgrades.md").read_text(), re.MULTILINE)
    _, python, django, *_, spark = row.strip("| ").split(" | ")

    def classified(name):
        return re.findall(rf"^{name} :: (\d+\.\d+)$", "\n".join(project["classifiers"]), re.MULTILINE)

    assert python.split(", ") == classified("Programming Language :: Python")
    assert django.split(", ") == classified("Framework :: Django")
    assert any(f">={spark}," in needed for needed in project["optional-dependencies"]["spark"])


def test_links_out_of_the_pages_become_text_if_their_file_exists(pages):
    source = ["See [the README](../README.md#x), [nothing](../nothing.md) and [Cron](cron.md)."]
    pages.unlink(SimpleNamespace(srcdir=DOCS), "page", source)
    assert source == ["See the README, [nothing](../nothing.md) and [Cron](cron.md)."]


def test_parameters_of_docstrings_are_paragraphs_and_examples_are_code(pages):
    lines = ["Does it.", "", "at: when it is", "    due.", "key: its key.", "", "    task.enqueue(7)", "", "    end()"]
    pages.shape(SimpleNamespace(), "function", "f", None, None, lines)
    assert lines == [
        *("Does it.", "", "at: when it is due.", "", "key: its key.", ""),
        *("::", "", "    task.enqueue(7)", "", "    end()"),
    ]


def test_each_picture_is_committed_as_its_source_stands(pages):
    drawn = list(pages.pictures.every())
    assert {picture.name for picture in drawn} >= {"architecture-1", "architecture-2"}
    for picture in drawn:
        for suffix in pages.pictures.THEMES:
            assert picture.path(suffix).read_text().startswith(picture.mark), "Run docs/pictures.py"
            assert "<script" not in picture.path(suffix).read_text()
    named = {picture.path(suffix) for picture in drawn for suffix in pages.pictures.THEMES}
    assert {*(DOCS / "images").glob("*.svg")} == named


def test_the_site_shows_a_picture_for_each_mode_in_place_of_its_source(pages):
    source = ["Before\n\n```mermaid\nflowchart TB\n```\n\nafter"]
    pages.show_pictures(SimpleNamespace(), "deploy/web", source)
    assert "mermaid" not in source[0]
    assert source[0].count("```{image} ../images/deploy-web-1") == 2
    assert ":class: only-light" in source[0]
    assert ":class: only-dark" in source[0]
