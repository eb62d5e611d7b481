from __future__ import annotations

import pytest
from django.utils import timezone

from tests.browser.conftest import EACH_LOOK
from tests.browser.given import a_busy_site

pytestmark = [pytest.mark.slow, pytest.mark.parametrize("alias", ["sqlite"], indirect=True)]


def test_the_dashboard_draws_its_charts_with_their_tables(site):
    a_busy_site()
    dashboard = site.dashboard.open()

    assert dashboard.charts() == 3
    assert int(dashboard.total("arrived").replace(",", "")) > 3000
    rows = dashboard.table("Arrivals and finishes")
    assert len(rows) == 60
    assert sum(int(row[2].replace(",", "")) for row in rows) == int(dashboard.total("finished").replace(",", ""))


def test_the_legend_shows_the_numbers_under_the_pointer(site):
    a_busy_site()
    said = site.dashboard.open().point_at("Latency: how late messages started")

    assert "s" in said.split("p50")[1].split("p95")[0], said


@pytest.mark.parametrize("look", EACH_LOOK)
@pytest.mark.parametrize("span", ["hour", "day", "week"])
def test_the_dashboard_fits_its_window(site, span):
    a_busy_site()
    dashboard = site.dashboard.open(f"?span={span}")

    assert dashboard.charts() == 3
    assert dashboard.shoot(f"dashboard-{span}").overflow() <= 0


@pytest.mark.parametrize("look", EACH_LOOK)
@pytest.mark.parametrize("ahead", ["day", "week"])
def test_the_forecast_warns_of_a_stampede_in_every_window(site, ahead):
    stampede = a_busy_site()
    forecast = site.forecast.open(f"?ahead={ahead}")

    (warning,) = forecast.warnings()
    assert f"{timezone.localtime(stampede):%H:%M}" in warning
    assert forecast.shoot(f"forecast-{ahead}").overflow() <= 0


def test_a_stampede_links_to_its_messages(site):
    a_busy_site()
    site.forecast.open().follow("Show them")

    assert "since=" in site.page.url
