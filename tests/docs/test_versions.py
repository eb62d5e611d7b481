"""docs/versions.py: the sites of two tags of a clone in one folder, and what is plain in each."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]  # two sites are built, beside other tests

ROOT = Path(__file__).parents[2]
NAMED = ["-c", "user.name=tests", "-c", "user.email=tests@example.org", "-c", "commit.gpgsign=false"]
INDEX = "# Pages\n\n```{toctree}\nstart\nmore/testing\n```\n"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Of a clone whose pages are few, so that it is built in seconds; the second tag has a page more."""
    clone, folder = tmp_path_factory.mktemp("clone"), tmp_path_factory.mktemp("site")

    def git(*arguments):
        subprocess.run(["git", *NAMED, *arguments], cwd=clone, check=True, capture_output=True)

    git("clone", "--quiet", str(ROOT), ".")
    testing = (clone / "docs" / "testing.md").read_text()
    git("rm", "--quiet", "-r", "docs/*.md", "docs/images")
    docs = clone / "docs"
    (docs / "more").mkdir()
    (docs / "more" / "testing.md").write_text(testing)
    (docs / "start.md").write_text("# Start\n\nHere.\n")
    (docs / "index.md").write_text(INDEX.replace("start\n", ""))
    git("add", "docs/index.md", "docs/more")
    git("commit", "--quiet", "--message", "first")
    git("tag", "v0.0.1")
    (docs / "index.md").write_text(INDEX)
    (docs / "versions.py").write_text((ROOT / "docs" / "versions.py").read_text())
    git("add", "--all")
    git("commit", "--quiet", "--message", "second")
    git("tag", "v0.0.2")
    command = [sys.executable, docs / "versions.py", folder, "v0.0.2", "v0.0.1"]
    done = subprocess.run(command, env=os.environ, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stderr
    return folder


def test_each_version_has_its_own_pages(site):
    assert (site / "v0.0.2" / "start.html").exists()
    assert not (site / "v0.0.1" / "start.html").exists()
    assert "Run what is due" in (site / "v0.0.1" / "more" / "testing.html").read_text()


@pytest.mark.parametrize("page", ["v0.0.1/index.html", "v0.0.2/more/testing.html", "v0.0.2/search.html"])
def test_each_page_has_the_list_of_versions(site, page):
    (script,) = re.findall(r'<script defer src="([^"]*versions.js)"></script>', (site / page).read_text())
    assert ((site / page).parent / script).resolve() == site / "versions.js"


def test_the_start_leads_to_the_newest(site):
    assert 'url=v0.0.2/index.html"' in (site / "index.html").read_text()


def test_nothing_comes_from_another_host(site):
    for page in site.rglob("*.html"):
        assert (
            re.findall(r'<(?:script|img)[^>]* src="(?:https?:)?//|<link[^>]* href="(?:https?:)?//', page.read_text())
            == []
        )


def test_each_page_is_there_as_markdown_and_in_llms_txt(site):
    plain = (site / "v0.0.2" / "llms.txt").read_text()
    assert re.findall(r"\]\((.+)\)", plain) == ["index.md", "more/testing.md", "start.md"]
    assert (site / "v0.0.2" / "more" / "testing.md").read_text().startswith("# Testing code that uses delayedq")
    assert re.findall(r"\]\((.+)\)", (site / "llms.txt").read_text()) == ["v0.0.2/llms.txt", "v0.0.1/llms.txt"]


@pytest.mark.parametrize("name", ["--output=x", "../x", ".git"])
def test_what_is_no_tag_is_refused(name, tmp_path):
    command = [sys.executable, ROOT / "docs" / "versions.py", tmp_path, "--", name]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "can't be the name of a folder" in done.stderr
