"""The page: what it says, what it never contains, and that it says something sensible of next to nothing."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser

import pyarrow.csv
import pyarrow.parquet
import pytest

from delayedq.pipeline.report import charts
from delayedq.pipeline.report.page import render, write
from delayedq.pipeline.report.tables import measure
from tests.pipeline.report.histories import NOON, after, ended, frame

MADE_AT = datetime(2013, 4, 1, tzinfo=UTC)
HOSTILE = "app.<script>alert(1)</script>&\"'{{ 7 * 7 }}"


def of_eight_days(number):
    """Busy every day, with failures, a dead letter and a tick."""
    at = number * 600.0 + 3_600 * (number % 6)
    columns = {"id": number, "kind": f"app.task_{number % 3}", "queue": ("mail", "web")[number % 2]}
    if number % 40 == 21:
        return ended(None, at + 5, due=at + 900, state="cancelled", attempts=0, **columns)
    if number % 50 == 13:
        return ended(at + 20, at + 23, due=at, attempts=2, **columns)  # of the first attempt there is no record
    if number % 10 == 3:
        return ended(at + 31, at + 33, due=at + 30, due_first=at, attempts=2, failures=[(1, at + 5, 2.0)], **columns)
    if number % 100 == 7:
        return ended(at + 1, at + 2, due=at, state="failed", failures=[(1, at + 2, 1.0)], **columns | {"kind": HOSTILE})
    if number % 50 == 9:
        metadata = f'{{"cron": {{"schedule": "report", "nominal_at": "{after(at).isoformat()}"}}}}'
        return ended(at + 2, at + 4, due=at, metadata=metadata, **columns)
    wait = 900 * (number % 20) if 600 <= number < 620 else number % 7 / 10  # once, a few hours of backlog
    return ended(at + wait, at + wait + 3 + number % 5, due=at, **columns)


def live(number, state, due):
    return ended(None, None, due=due, id=number, state=state, attempts=0)


@pytest.fixture(scope="module")
def figures(spark):
    rows = [of_eight_days(number) for number in range(1_140)]
    rows += [live(1_001, "waiting", 1_000.0), live(1_002, "waiting", 1e7)]
    return measure(frame(spark, *rows), NOON, after(8.2 * 86_400))


@pytest.fixture(scope="module")
def page(figures):
    return render(figures, MADE_AT)


class Reader(HTMLParser):
    """What a browser would make of it."""

    VOID = ("meta", "br", "link", "path", "use", "rect", "circle", "line")

    def __init__(self):
        super().__init__()
        self.open, self.tags, self.titles = [], [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        if tag not in self.VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] == "h2":
            self.titles.append(data)


@pytest.fixture(scope="module")
def read(page):
    reader = Reader()
    reader.feed(page)
    assert reader.open == []
    return reader


def test_it_has_a_section_for_each_question(read):
    assert read.titles == [
        "What arrived, and what ended",
        "How long messages waited to begin",
        "Backlog",
        "Task by task",
        "The slow ones",
        "Hours of the week",
        "How many threads it takes",
        "Failures",
        "Retries",
        "Leases",
        "Cron",
        "Not over yet",
    ]


def test_it_needs_no_network_and_runs_no_script(read, page):
    assert {tag for tag, _ in read.tags} & {"script", "link", "img", "iframe", "object", "image"} == set()
    addresses = [
        value for _, attributes in read.tags for name, value in attributes.items() if name.endswith(("href", "src"))
    ]
    assert [address for address in addresses if not address.startswith("#")] == []
    assert re.findall(r"url\((?!#)", page) == []


def test_what_the_history_holds_is_shown_and_not_obeyed(page):
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert "49" not in re.findall(r"app\.[^ ]*", page)


def test_its_charts_take_their_colours_from_the_page(page):
    charts = re.findall(r"<svg.*?</svg>", page, re.DOTALL)

    assert len(charts) == 7
    for chart in charts:
        assert re.findall(r"#[0-9a-f]{6}\b", chart) == []
        assert "var(--" in chart


def test_every_chart_says_to_those_who_do_not_see_it_what_it_shows(read):
    labels = [attributes["aria-label"] for tag, attributes in read.tags if tag == "svg"]

    assert len(set(labels)) == 7
    assert all(re.search(r"\d", label) for label in labels)


def test_the_sentences_have_the_numbers(read, page):
    text = re.sub(r"<[^>]+>", "", page)

    assert "1,140 messages ended: 28 were cancelled, replaced or too late, and of the others 98.9% ended well." in text
    assert "28 never arrived: they were cancelled or replaced before they were due." in text
    assert "12 messages for good" in text
    assert "2 messages had not ended with this time; 1 was due." in text
    assert "23 ticks ran." in text


def test_the_same_history_gives_the_same_page(figures, page):
    assert render(figures, MADE_AT) == page


def test_every_figure_is_beside_the_page_in_both_formats(figures, tmp_path):
    path = write(figures, tmp_path / "out", MADE_AT)

    assert path.read_text().startswith("<!DOCTYPE html>")
    for name in (*figures.tables, "capacity"):
        table = pyarrow.parquet.read_table(path.parent / "tables" / f"{name}.parquet")
        lines = (path.parent / "tables" / f"{name}.csv").read_text().splitlines()
        assert len(lines) == 1 + table.num_rows
    assert pyarrow.csv.read_csv(path.parent / "tables" / "capacity.csv")["queue"].to_pylist() == [
        "all queues",
        "mail",
        "web",
    ]


def test_a_report_replaces_an_earlier_one(figures, tmp_path):
    write(figures, tmp_path, MADE_AT)
    write(figures, tmp_path, MADE_AT + timedelta(days=1))

    assert "2 April 2013" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize(
    "rows",
    [
        [],
        [ended(id=1)],
        [live(1, "waiting", 5.0)],
        [ended(None, 5, state="cancelled", attempts=0)],
        [ended(0, 0, created=0)],
        [ended(None, 9, state="failed", attempts=3, failures=[(4, 9, None)])],
        [ended(31, 33, due=30, due_first=0, attempts=2)],
    ],
    ids=["nothing", "one", "one that waits", "one cancelled", "no time at all", "one that vanished", "one unknown"],
)
def test_it_says_something_sensible_of_next_to_nothing(spark, rows):
    page = render(measure(frame(spark, *rows), NOON, after(100)), MADE_AT)

    text = re.sub(r"<style>.*?</style>|<[^>]+>", "", page, flags=re.DOTALL)
    assert re.findall(r"\b(nan|None|inf)\b|\d[eE]-\d", text) == []
    assert "How the queue did" in text


def test_of_a_minute_it_says_seconds_and_what_lies_in_it(spark):
    """All of it happened within a minute that lies in the middle of the 5 minutes around it."""
    rows = [ended(170 + n / 10, 171 + n / 10, due=170, id=n) for n in range(30)]
    page = render(measure(frame(spark, *rows), after(169), after(175)), MADE_AT)
    text = re.sub(r"<style>.*?</style>|<[^>]+>", "", page, flags=re.DOTALL)

    assert "10 March 2013 12:02:49 to 12:02:55" in text
    assert "Retries" not in text  # of one attempt each there is only a bar of 100%
    moments = re.findall(r"\w{3} 10 Mar (\d\d:\d\d(?::\d\d)?)", text)
    assert moments
    assert all("12:02:49" <= found <= "12:02:55" for found in moments), moments


def test_percentiles_in_a_legend_do_not_lie_on_each_other(page):
    """In one row: the places of their labels rise, and differ by more than the width of one."""
    [chart] = [svg for svg in re.findall(r"<svg.*?</svg>", page, re.DOTALL) if ">p99<" in svg]
    places = [float(re.search(rf'x="([\d.]+)"[^>]*>{name}<', chart)[1]) for name in ("p50", "p95", "p99")]

    assert places[1] - places[0] > 20
    assert places[2] - places[1] > 20


def test_threads_are_drawn_if_a_few_of_them_make_a_difference(spark, figures):
    rows = [ended(n + 0.2, n + 20 + n % 3, due=n, id=n) for n in range(120)]
    busy = render(measure(frame(spark, *rows), NOON, after(150)), MADE_AT)
    idle = render(figures, MADE_AT)

    assert "The chart shows how long its messages would wait" in busy
    assert re.search(r">threads</text>", busy)
    assert "The chart shows how long its messages would wait" not in idle
    assert not re.search(r">threads</text>", idle)


@pytest.mark.parametrize("seconds", [30, 100, 130, 170, 3_000, 100_000, 3e6])
def test_a_span_of_any_length_has_a_time_axis(spark, seconds):
    """matplotlib warns if it finds no ticks."""
    rows = [
        ended(seconds * part, seconds * part + 9, due=seconds * part - 1, id=n) for n, part in enumerate((0.1, 0.8))
    ]
    figures = measure(frame(spark, *rows), NOON, after(seconds))

    assert "What arrived" in render(figures, MADE_AT)
    assert "<svg" in charts.backlog(figures, "waiting and running")


def test_a_queue_in_which_nothing_gathers_has_no_picture_of_its_backlog(spark):
    rows = [ended(n + 0.001, n + 0.5, due=n, id=n) for n in range(60)]
    page = render(measure(frame(spark, *rows), NOON, after(60)), MADE_AT)

    assert "What arrived" in page
    assert "Backlog" not in page


def test_waits_have_no_line_where_none_ended_and_a_dot_where_one_ended_alone(spark):
    ends = (1, 2, 3, 30, 58, 59)
    figures = measure(frame(spark, *(ended(n + 0.1, n + 0.2, due=n, id=n) for n in ends)), NOON, after(60))
    chart = charts.waits(figures, "waits")

    dots = re.findall(r'<use xlink:href="#\w+" x="[\d.]+" y="[\d.]+" style="fill: var\(--green\)', chart)
    assert len(dots) == 2  # the other one is in the legend
    [p50] = [path for path in re.findall(r'<path d="([^"]+)"[^>]*stroke: var\(--green\)', chart) if path.count("M") > 1]
    assert p50.count("M") == 3
