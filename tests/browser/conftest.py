"""A real browser on a real server: a message on its console or a request to another host fails the test.

It is Debian's Chromium, or the one named by DELAYEDQ_TEST_CHROMIUM. What pages look like is kept in `screenshots/`.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from unittest.mock import patch

import pytest
from django.conf import settings
from django.contrib.auth import get_user_model
from django.test import Client

from tests.browser.accessibility import NARROW, WIDE, axe_core
from tests.browser.site import Site
from tests.missing import missing
from tests.nightly import few_of

SCREENSHOTS = Path(__file__).parent / "screenshots"
#: Milliseconds that an element may take to appear.
PATIENCE = 45_000
LOOKS = {
    "wide-light": (WIDE, "light"),
    "wide-dark": (WIDE, "dark"),
    "narrow-light": (NARROW, "light"),
    "narrow-dark": (NARROW, "dark"),
}
EACH_LOOK = few_of(LOOKS, ["wide-light", "narrow-dark"])


@pytest.fixture(scope="package")
def chromium(django_db_setup):
    """The browser; without it these tests are skipped, but fail in CI."""
    path = os.environ.get("DELAYEDQ_TEST_CHROMIUM") or shutil.which("chromium")
    if not path:
        missing("chromium")
    from playwright.sync_api import sync_playwright

    # Playwright runs an event loop in this thread, and Django would refuse the database beside one.
    with patch.dict(os.environ, DJANGO_ALLOW_ASYNC_UNSAFE="true"), sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="package")
def server(django_db_setup):
    from pytest_django.live_server_helper import LiveServer

    server = LiveServer("localhost")
    with server._live_server_modified_settings:
        yield server.url
    server.stop()


@pytest.fixture(scope="package")
def axe():
    return axe_core()


@pytest.fixture
def context(chromium, server, look):
    """A new browser context without cookies or cache."""
    viewport, scheme = LOOKS[look]
    context = chromium.new_context(
        base_url=server, viewport=viewport, color_scheme=scheme, timezone_id="Asia/Tokyo", reduced_motion="reduce"
    )
    context.set_default_timeout(PATIENCE)
    context.route("**/favicon.ico", lambda route: route.fulfill(status=204))  # the admin has none, and browsers ask
    yield context
    context.close()


@pytest.fixture
def look():
    """The size and theme of the window; a test can be parametrized with EACH_LOOK."""
    return "wide-light"


@pytest.fixture
def visitor(alias, context, server):
    """A page without a log-in."""
    complaints = []
    page = context.new_page()
    page.on("console", lambda said: complaints.append(said.text) if said.type in {"error", "warning"} else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("requestfailed", lambda request: complaints.extend(failures(request)))
    page.on(
        "request", lambda request: None if request.url.startswith(server) else complaints.append(f"asks {request.url}")
    )
    yield page
    assert complaints == []


def failures(request):
    """Requests that the browser cancels when it leaves a page are not failures."""
    return [] if request.failure == "net::ERR_ABORTED" else [f"{request.url} failed: {request.failure}"]


@pytest.fixture
def site(visitor, context, look):
    """The admin, with a superuser logged in."""
    user = get_user_model().objects.create_superuser("ann", password="wonderland")
    log_in(context, user)
    return Site(visitor, SCREENSHOTS / look)


def log_in(context, user):
    client = Client()
    client.force_login(user)
    cookie = client.cookies[settings.SESSION_COOKIE_NAME]
    context.add_cookies([{"name": cookie.key, "value": cookie.value, "domain": "localhost", "path": "/"}])
