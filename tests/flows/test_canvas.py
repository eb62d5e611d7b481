"""The table "From Celery's canvas" of docs/flows.md: what each row says of delayedq is done; on every database."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from delayedq import Flow, chain, current_message, get_flow, group, map_, task
from delayedq.flows.rules import MAX_NESTING
from delayedq.models import FinishedMessage, Message
from tests.app import tasks
from tests.flows.given import call, fails, run, states

GUIDE = Path(__file__).parents[2] / "docs" / "flows.md"
NO_EQUAL = {"`self.replace(signature)`", "`self.add_to_chord(signature)`", "parts of a canvas on different brokers"}
made, noted = [], []


@task
def add(*numbers):
    return sum(sum(number) if isinstance(number, list) else number for number in numbers)


@task
def add_rows(rows):
    return [add.func(*row) if isinstance(row, list) else row + 1 for row in rows]


@task
def parent():
    made.append(int(add.enqueue(1).id))
    return current_message().id


@task
def note(id_):
    noted.append(id_)


@task(on_success=note)
def noticed():
    return None


@task(max_attempts=1, on_failure=note)
def unlucky():
    raise ValueError("no")


def result_of(*parts):
    flow = chain(*parts).enqueue()
    run()
    return flow.result()


def incoming():
    assert result_of(add.s(1), add.s(2)) == 3


def own_arguments():
    assert result_of(add.s(1), add.si(2, 2)) == 4


def options():
    flow = chain(add.using(queue_name="mail", priority=9).s(2)).enqueue()
    assert Message.objects.values_list("queue", "priority").get() == ("mail", 9)
    flow.cancel()


def side_by_side():
    flow = group(add.s(n) for n in range(10)).enqueue()
    assert Message.objects.count() == 10
    run()
    assert flow.result() == list(range(10))


def callback():
    flow = group(add.s(1), add.s(2)).then(add.s()).enqueue()
    run()
    assert flow.result() == 3


def chunks():
    flow = map_(add_rows, [[n, n] for n in range(5)], chunk=2).enqueue()
    run()
    assert flow.result() == [[0, 2], [4, 6], [8]]


def one_message():
    rows = [1, 2, 3]
    flow = map_(add_rows, rows, chunk=len(rows)).enqueue()
    assert Message.objects.count() == 1
    run()
    assert flow.result() == [[2, 3, 4]]


def stored():
    assert chain(add.s(1)).enqueue().state == "running"
    assert asyncio.run(_async_state()) == "running"


async def _async_state():
    flow = await chain(add.s(1)).aenqueue()
    return {str(step.state) for step in await flow.asteps()}.pop()


def links():
    noted.clear()
    flow = Flow("links", policy="continue")
    flow.add("bad", fails("bad"))
    flow.add("link_error", add.s(1), after="bad", when="failed")
    stored_flow = flow.enqueue()
    ids = [noticed.enqueue().id, unlucky.enqueue().id]
    run()
    assert states(stored_flow) == {"bad": "failed", "link_error": "succeeded"}
    assert sorted(map(int, noted)) == sorted(map(int, ids))


def lineage():
    flow = chain(parent.s()).enqueue()
    seen = []
    tasks.bodies["child"] = lambda: seen.append(current_message().parent_id)
    run()
    assert [step.name for step in flow.steps()] == ["1 parent"]
    assert FinishedMessage.objects.filter(id=made[-1]).exists()
    assert f'"delayedq.parent":{flow.result()}' in FinishedMessage.objects.get(id=made[-1]).metadata


def get_of_a_group():
    flow = group(add.s(1), add.s(2)).enqueue()
    run()
    assert flow.wait().result() == [1, 2]


def saved():
    flow = chain(add.s(1)).enqueue()
    assert get_flow(flow.id).state == "running"
    run()
    assert get_flow(str(flow.id)).result() == 1


def revoked():
    flow = chain(add.s(1), add.s(2)).enqueue()
    assert flow.cancel()
    assert states(flow) == {"1 add": "cancelled", "2 add": "skipped"}
    assert not Message.objects.exists()


def another_flow():
    flow = chain(call("replaces", lambda: chain(add.s(1), add.s(1)).enqueue().id)).enqueue()
    run()
    assert get_flow(flow.result()).result() == 2


def any_iterator():
    flow = map_(add_rows, (n for n in range(3)), chunk=1).enqueue()
    run()
    assert flow.result() == [[1], [2], [3]]


def stamped():
    chain(add.using(metadata={"stamp": 7}).s(1)).enqueue()
    run()
    assert FinishedMessage.objects.filter(metadata__contains='"stamp":7').count() == 1


def failed_header():
    flow = Flow("header", policy="continue", on_failure=note)
    header = flow.add("header", group(add.s(1), fails("bad")))
    flow.add("when failed", add.s(1), after=header, when="failed")
    flow.add("when ended", tasks.echo.s(header.result), when="ended")
    flow.add("else", add.s(header.result))
    noted.clear()
    result = flow.enqueue()
    run()
    assert states(result) == {
        "header": "failed", "when failed": "succeeded", "when ended": "succeeded", "else": "skipped",
    }  # fmt: skip
    assert result.result("when ended")["args"] == [[1, None]]
    assert noted == [str(result.id)]


def in_one_database():
    flow = chain(add.s(1)).enqueue()
    assert flow.store.alias == Message.objects.db


ROWS = {
    "`add.s(2)`": incoming,
    "`add.si(2, 2)`": own_arguments,
    '`add.s(2).set(queue="mail", priority=9)`': options,
    "`chain(a.s(1), b.s())`, `a.s(1) \\| b.s()`": incoming,
    "`group(a.s(n) for n in range(10))`": side_by_side,
    "`chord(header)(callback.s())`, `group(...) \\| callback.s()`": callback,
    "`chunks(add, rows, 500)`": chunks,
    "`add.map(rows)`, `add.starmap(rows)`": one_message,
    "`signature.apply_async()`, `.delay()`": stored,
    "`link=`, `link_error=`": links,
    "`AsyncResult.parent`, `.children`": lineage,
    "`GroupResult.get()`": get_of_a_group,
    "`GroupResult.save()`, `.restore()`": saved,
    "`result.revoke()` of a chain": revoked,
    "`self.replace(signature)`": another_flow,
    "`self.add_to_chord(signature)`": any_iterator,
    "`stamping`": stamped,
    "`ChordError` of a header that failed": failed_header,
    "parts of a canvas on different brokers": in_one_database,
}


def table():
    """Its rows: the first cell and the second."""
    lines = GUIDE.read_text().partition("## From Celery's canvas")[2].splitlines()
    rows = [line.strip("| ").replace("\\|", "\0").split(" | ") for line in lines if line.startswith("|")]
    return {row[0].replace("\0", "\\|").strip(): row[1].strip(" |") for row in rows[2:]}


def test_each_row_of_the_table_is_here():
    assert list(table()) == list(ROWS)
    assert {name for name, here in table().items() if here == "no equivalent"} == NO_EQUAL


@pytest.mark.parametrize("row", ROWS)
def test_a_row_of_the_table_is_true(alias, row):
    ROWS[row]()


def test_a_chain_is_built_in_a_loop(alias):
    """Each `then` makes it longer, and not deeper."""
    whole = chain(tasks.nothing.si())
    for _ in range(MAX_NESTING + 10):
        whole = whole.then(tasks.nothing.si())
    result = whole.enqueue()

    assert run() == ["succeeded"] * (MAX_NESTING + 11)
    assert result.state == "succeeded"
