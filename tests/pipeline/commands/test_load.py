"""`run_pipeline load`: what of a file becomes messages, what is refused, and what is told."""

from __future__ import annotations

import gzip
import json
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from django.core.management import CommandError, call_command
from pyarrow import parquet

from delayedq.core.serialization import load_call
from delayedq.exceptions import InvalidOption
from delayedq.models import Message
from delayedq.pipeline.commands.load import Mapped, recipe_of
from delayedq.pipeline.models import Load

ONE_DATABASE = pytest.mark.parametrize("alias", ["sqlite"], indirect=True)

FLIGHTS = """code,departure,day
UA1545,517,2013-01-01T05:15
UA1714,,2013-01-01T05:29
AA1141,542,2013-03-10T02:30
B6725,x,2013-01-01T05:45
DL461,554,2013-07-04T06:00
"""
NEW_YORK = ("--key", "{code}/{day}", "--at", "day", "--timezone", "America/New_York")


@pytest.fixture
def load(spark, store, capsys):
    """Load files; returns what was told."""

    def run(*arguments, task="tests.app.tasks.depart"):
        call_command("run_pipeline", "load", *map(str, arguments), "--task", task)
        return capsys.readouterr().out

    return run


@pytest.fixture
def flights(tmp_path):
    path = tmp_path / "flights.csv"
    path.write_text(FLIGHTS)
    return path


def arguments_of(message):
    return load_call(message.payload)[1]


def refused(path):
    lines = path.with_name(f"{path.name}.rejects.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_good_rows_become_messages_once_and_the_others_are_told_with_reasons(load, flights):
    told = load(flights, *NEW_YORK)

    assert "2 rows are good, 3 are refused" in told
    assert [row["reason"] for row in refused(flights)] == [
        "departure: is empty",
        "time: does not exist in America/New_York: clocks were put forward over it",
        "departure: is not a whole number",
    ]
    assert json.loads(refused(flights)[2]["row"])["code"] == "B6725"
    first, second = Message.objects.order_by("scheduled_at")
    assert (first.key, first.kind, first.max_attempts) == ("UA1545/2013-01-01T05:15", "tests.app.tasks.depart", 8)
    assert arguments_of(first) == {"code": "UA1545", "departure": 517}
    assert first.scheduled_at == datetime(2013, 1, 1, 10, 15, tzinfo=UTC)
    assert second.scheduled_at == datetime(2013, 7, 4, 10, tzinfo=UTC)

    assert "Nothing to do" in load(flights, *NEW_YORK)
    assert Message.objects.count() == 2
    assert Load.objects.get().inserted == 2


@ONE_DATABASE
def test_a_dry_run_and_times_without_a_zone_load_nothing(load, flights):
    assert "2 rows are good" in load(flights, *NEW_YORK, "--dry-run")
    assert Message.objects.count() == 0

    assert "0 rows are good, 5 are refused" in load(flights, "--at", "day")
    assert all("time: has no time zone; name one with --timezone" in row["reason"] for row in refused(flights))
    assert Message.objects.count() == 0


@ONE_DATABASE
@pytest.mark.parametrize(
    ("policy", "departures"), [("reject", {3}), ("first", {1, 3}), ("last", {2, 3})], ids=["reject", "first", "last"]
)
def test_rows_that_share_a_key(load, tmp_path, policy, departures):
    path = tmp_path / "flights.csv"
    path.write_text("code,departure\na,1\na,2\nb,3\n")

    load(path, "--key", "code", "--duplicates", policy)

    assert {arguments_of(message)["departure"] for message in Message.objects.all()} == departures
    assert all("key: " in row["reason"] for row in refused(path))


@ONE_DATABASE
def test_json_lines_keep_their_types_and_broken_ones_are_refused(load, tmp_path):
    path = tmp_path / "calls.jsonl.gz"
    lines = ['{"to": "a", "many": [1, {"b": null}]}', "{", '["no object"]', '{"to": "\\ud800"}']
    path.write_bytes(gzip.compress("\n".join(lines).encode()))

    load(path, task="tests.app.tasks.echo")

    assert [row["reason"] for row in refused(path)] == ["is not a JSON object", "is not a JSON object"]
    assert [arguments_of(message) for message in Message.objects.order_by("id")] == [
        {"to": "a", "many": [1, {"b": None}]},
        {"to": "\ud800"},
    ]


@ONE_DATABASE
def test_a_name_that_only_the_last_line_has_is_seen(load, tmp_path):
    path = tmp_path / "flights.jsonl"
    lines = [json.dumps({"code": f"UA{number}", "departure": number}) for number in range(1500)]
    path.write_text("\n".join([*lines, '{"code": "UA1545", "departure": 517, "gate": "C21"}']))

    with pytest.raises(CommandError, match="gate"):
        load(path)
    load(path, "--ignore-others")
    assert Message.objects.count() == 1501


@ONE_DATABASE
def test_parquet_keeps_its_types_and_a_spread_delays_each_row_by_some(load, tmp_path, store):
    path = tmp_path / "calls.parquet"
    at = datetime(2030, 1, 1, tzinfo=UTC)
    parquet.write_table(pa.table({"number": [1, 2, 3], "at": pa.array([at] * 3, pa.timestamp("us", "UTC"))}), path)

    load(path, "--at", "at", "--spread", "10m", task="tests.app.tasks.echo")

    messages = Message.objects.order_by("payload")
    assert [arguments_of(message)["number"] for message in messages] == [1, 2, 3]
    delays = {message.scheduled_at - at for message in messages}
    assert len(delays) == 3
    assert all(timedelta() <= delay < timedelta(minutes=10) for delay in delays)


@ONE_DATABASE
def test_rows_with_another_number_of_fields_are_refused(load, tmp_path):
    path = tmp_path / "flights.csv"
    path.write_text('code,departure\n"a ""b"", c",1\nd\ne,2,3\n')

    assert "1 rows are good, 2 are refused" in load(path)
    assert arguments_of(Message.objects.get())["code"] == 'a "b", c'
    assert {row["reason"] for row in refused(path)} == {"has not as many fields as the header"}


@ONE_DATABASE
@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["nowhere.csv"], "nothing to read at nowhere.csv"),
        (["flights.xls"], "Files of one format"),
        (["{flights}", "--task", "os.remove"], "No task is registered as 'os.remove'"),
        (["{flights}", "--key", "tail"], "no column 'tail'"),
        (["{flights}", "--timezone", "Mars/Olympus"], "no time zone 'Mars/Olympus'"),
    ],
    ids=["file", "format", "task", "column", "zone"],
)
def test_what_can_t_be_loaded_is_said_in_a_sentence(spark, store, flights, arguments, problem):
    given = [argument.format(flights=flights) for argument in arguments]
    with pytest.raises(CommandError, match=problem):
        call_command("run_pipeline", "load", "--task", "tests.app.tasks.depart", *given)


# How columns are mapped


def parameters(task, columns, **changes):
    mapped = Mapped(task=f"tests.app.tasks.{task}", **{"arguments": {}} | changes)
    return {parameter.name: parameter for parameter in recipe_of(mapped, columns).parameters}


def test_columns_are_arguments_by_name_with_the_types_of_the_task():
    found = parameters("depart", ["departure", "code"])

    assert (found["departure"].type_, found["code"].type_) == (int, str)
    assert found["code"].required


def test_an_argument_may_come_from_another_column_or_from_several():
    found = parameters(
        "depart", ["at", "carrier", "flight"], arguments={"code": "{carrier}{flight}", "departure": "at"}
    )

    assert found["code"].source.value({"carrier": "UA", "flight": "7"}) == "UA7"


def test_a_task_that_takes_anything_gets_all_columns_that_have_no_other_use():
    assert set(parameters("echo", ["a", "b", "at", "c"], at="at", ignored=["c"])) == {"a", "b"}


def test_arguments_with_defaults_need_no_column():
    assert set(parameters("remind", ["flight_id"])) == {"flight_id"}


@pytest.mark.parametrize(
    ("columns", "changes", "problem"),
    [
        (["code"], {}, "no column for the argument 'departure'"),
        (["code", "departure", "tail"], {}, "takes no argument 'tail'"),
        (["code", "departure"], {"arguments": {"tail": "code"}}, "takes no argument 'tail'"),
        (["code", "departure"], {"arguments": {"code": "tail"}}, "no column 'tail'"),
        (["code", "departure"], {"ignored": ["code"]}, "no column for the argument 'code'"),
    ],
)
def test_columns_that_do_not_fit_the_task_are_named(columns, changes, problem):
    with pytest.raises(InvalidOption, match=problem):
        parameters("depart", columns, **changes)


def test_columns_that_nothing_uses_may_be_passed_over():
    assert set(parameters("depart", ["code", "departure", "tail"], strict=False)) == {"code", "departure"}


@pytest.mark.parametrize("task", ["deliver", "report", "post"])
def test_a_task_with_a_channel_or_a_limit_is_refused_with_the_way_that_keeps_it(task):
    with pytest.raises(InvalidOption, match=rf"{task} has a channel or a limit.* {task}.enqueue_bulk\(\), which keeps"):
        recipe_of(Mapped(task=f"tests.app.tasks.{task}", arguments={}), ["customer"])


def test_a_task_that_the_settings_limit_is_refused_too(settings):
    remind = Mapped(task="tests.app.tasks.remind", arguments={})
    recipe_of(remind, ["flight_id"])
    settings.DELAYEDQ = {"LIMITS": {"tests.app.tasks.remind": {"concurrency": 1}}}
    with pytest.raises(InvalidOption, match="remind has a channel or a limit"):
        recipe_of(remind, ["flight_id"])
