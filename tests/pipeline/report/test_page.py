"""The page: what it says, what it never contains, and that it says something sensible of next to nothing."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser

import pyarrow.csv
import pyarrow.parquet
import pytest

from delayedq.pipeline.report.figures import measure
from delayedq.pipeline.report.page import render
from delayedq.pipeline.report.writing import write
from tests.pipeline.report.histories import NOON, after, ended, frame

MADE_AT = datetime(2013, 4, 1, tzinfo=UTC)
HOSTILE = "app.<script>alert(1)</script>&\"'{{ 7 * 7 }}"


def of_four_days(number):
    """Busy every day, with failures, a dead letter and a tick."""
    at = number * 600.0
    columns = {"id": number, "kind": f"app.task_{number % 3}", "queue": ("mail", "web")[number % 2]}
    if number % 10 == 3:
        return ended(at + 31, at + 33, due=at + 30, due_first=at, attempts=2, failures=[(1, at + 5, 2.0)], **columns)
    if number % 100 == 7:
        return ended(at + 1, at + 2, due=at, state="failed", failures=[(1, at + 2, 1.0)], **columns | {"kind": HOSTILE})
    if number % 50 == 9:
        metadata = f'{{"cron": {{"schedule": "report", "nominal_at": "{after(at).isoformat()}"}}}}'
        return ended(at + 2, at + 4, due=at, metadata=metadata, **columns)
    return ended(at + number % 7 / 10, at + 3 + number % 5, due=at, **columns)


def live(number, state, due):
    return ended(None, None, due=due, id=number, state=state, attempts=0)


@pytest.fixture(scope="module")
def figures(spark):
    rows = [of_four_days(number) for number in range(600)]
    rows += [live(1_001, "waiting", 1_000.0), live(1_002, "waiting", 1e7)]
    return measure(frame(spark, *rows), NOON, after(4.2 * 86_400))


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
        "Retries",
        "Failures",
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

    assert len(charts) == 8
    for chart in charts:
        assert re.findall(r"#[0-9a-f]{6}\b", chart) == []
        assert "var(--" in chart


def test_every_chart_says_to_those_who_do_not_see_it_what_it_shows(read):
    labels = [attributes["aria-label"] for tag, attributes in read.tags if tag == "svg"]

    assert len(set(labels)) == 8
    assert all(re.search(r"\d", label) for label in labels)


def test_the_sentences_have_the_numbers(read, page):
    text = re.sub(r"<[^>]+>", "", page)

    assert "600 messages ended, 99.0% of them well." in text
    assert "6 messages for good" in text
    assert "2 messages had not ended with this time; 1 was due." in text
    assert "12 ticks ran." in text


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
    assert re.findall(r"\b(nan|None|inf)\b", text) == []
    assert "How the queue did" in text
