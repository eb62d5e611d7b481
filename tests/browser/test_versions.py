"""The list of versions on pages of the documentation, opened from a disk."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

DOCS = Path(__file__).parents[2] / "docs"
PAGE = '<!doctype html><html lang="en"><head><title>{0}</title></head><body><h1>{0}</h1></body></html>'


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Two versions, the second with a page more."""
    monkeypatch.syspath_prepend(str(DOCS))
    import versions

    there = tmp_path / "a site"
    for page in ("v1/index", "v1/more/cron", "v2/index", "v2/more/cron", "v2/more/flows"):
        (there / page).parent.mkdir(parents=True, exist_ok=True)
        (there / f"{page}.html").write_text(PAGE.format(page))
    versions.join(there, ["v2", "v1"])
    yield there
    del sys.modules["versions"]


def test_another_version_is_chosen(chromium, folder):
    page = chromium.new_page()
    errors = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(f"{folder.as_uri()}/index.html")
    page.wait_for_url("**/v2/index.html")
    page.goto(f"{folder.as_uri()}/v2/more/cron.html")
    versions = page.get_by_label("Version")
    assert versions.locator("option:checked").inner_text() == "v2"

    versions.select_option(label="v1")
    page.wait_for_url("**/v1/more/cron.html")
    assert page.locator("h1").inner_text() == "v1/more/cron"

    page.goto(f"{folder.as_uri()}/v2/more/flows.html")
    page.get_by_label("Version").select_option(label="v1")  # which has no such page
    page.wait_for_url("**/v1/index.html")
    assert errors == []
    page.close()
