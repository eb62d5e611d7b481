"""Chains, groups and `map_`: what runs after what, and what each of them gets."""

from __future__ import annotations

import pytest

from delayedq import chain, group, map_
from delayedq.flows import graph
from delayedq.models import FinishedMessage, FlowMember, FlowStep, Message
from tests.app import tasks
from tests.flows.given import run, states


def calls():
    """The arguments of all messages that ended, in the order of their ids."""
    return list(FinishedMessage.objects.order_by("id").values_list("payload", flat=True))


def test_a_chain_hands_each_result_on(alias):
    flow = chain(tasks.echo.s(1), tasks.echo.s(b=2), tasks.echo.si(3)).enqueue(name="three")
    assert Message.objects.count() == 1
    assert run() == ["succeeded"] * 3
    assert flow.state == "succeeded"
    assert flow.result("2 echo") == {"args": [{"args": [1], "kwargs": {}}], "kwargs": {"b": 2}}
    assert flow.result() == {"args": [3], "kwargs": {}}
    assert '"$":"step"' in calls()[1]


def test_what_follows_a_group_gets_its_results_in_order(alias):
    flow = group(tasks.remind.s(number) for number in range(20)).then(tasks.echo.s()).enqueue()
    assert run() == ["succeeded"] * 21
    assert flow.result() == {"args": [[f"{number} at None" for number in range(20)]], "kwargs": {}}


def test_what_follows_a_group_runs_once(alias):
    flow = group(tasks.nothing.s() for _ in range(3)).then(tasks.nothing.s()).enqueue()
    run(limit=2)
    assert Message.objects.count() == 1
    assert states(flow) == {"1 nothing": "running", "2 nothing": "waiting"}
    assert run() == ["succeeded"] * 2
    assert FlowMember.objects.count() == 4


def test_chains_and_groups_contain_each_other(alias):
    inner = chain(tasks.remind.s(1), tasks.echo.s())
    flow = chain(group(inner, group(tasks.remind.s(2), tasks.remind.s(3))), tasks.echo.s()).enqueue()
    run()
    first = {"args": ["1 at None"], "kwargs": {}}
    assert flow.result() == {"args": [[first, ["2 at None", "3 at None"]]], "kwargs": {}}


def test_a_group_in_a_chain_gets_the_result_each(alias):
    flow = chain(tasks.remind.s(1), group(tasks.echo.s(2), tasks.echo.si(3)), tasks.echo.s()).enqueue()
    run()
    given = [{"args": ["1 at None", 2], "kwargs": {}}, {"args": [3], "kwargs": {}}]
    assert flow.result() == {"args": [given], "kwargs": {}}


@pytest.mark.parametrize("commit_every", [None, 3])
def test_map_gives_each_call_a_list_of_rows(alias, commit_every):
    rows = iter(range(25))
    flow = map_(tasks.echo, rows, chunk=4).then(tasks.echo.si("done")).enqueue(commit_every=commit_every)
    assert Message.objects.count() == 7
    run()
    assert [one["args"][0] for one in flow.result("1 echo")] == [
        list(range(first, min(25, first + 4))) for first in range(0, 25, 4)
    ]
    assert flow.result() == {"args": ["done"], "kwargs": {}}


@pytest.mark.parametrize("commit_every", [None, 3])
def test_an_empty_group_has_ended_at_once(alias, commit_every):
    flow = group(iter(())).then(tasks.echo.s()).enqueue(commit_every=commit_every)
    assert run() == ["succeeded"]
    assert flow.result() == {"args": [[]], "kwargs": {}}
    nested = chain(tasks.nothing.s(), group(iter(())), tasks.echo.s()).enqueue()
    assert run() == ["succeeded"] * 2
    assert nested.state == "succeeded"


def test_async_twins(alias):
    from asgiref.sync import async_to_sync

    flow = async_to_sync(chain(tasks.nothing.s(), tasks.echo.s()).aenqueue)()
    run()
    assert async_to_sync(flow.aresult)() == {"args": [None], "kwargs": {}}
    assert [step.state for step in async_to_sync(flow.asteps)()] == ["succeeded"] * 2


def test_arguments_are_written_once_where_the_signature_is_made(alias, monkeypatch):
    first, second = [1], [2]
    calls = [tasks.echo.s(first), tasks.echo.s(second)]
    monkeypatch.setattr("delayedq.tasks.verbs.dump_call", None)  # what writes the arguments of what is enqueued
    first.append("later")
    flow = group(calls).enqueue()
    run()
    assert [one["args"] for one in flow.result()] == [[[1]], [[2]]]
    assert [message.metadata for message in FinishedMessage.objects.order_by("id")] == [
        f'{{"delayedq.flow":{flow.id},"delayedq.step":0}}'
    ] * 2


def test_rows_are_read_as_they_are_stored_however_large_their_messages_are(alias, monkeypatch):
    monkeypatch.setattr("delayedq.flows.graph.HELD", 1_000)
    read, seen, store_members = [], [], graph.store_members

    def rows():
        for number in range(60):
            read.append(number)
            yield {"number": number, "text": "x" * 100}

    def store(*given):
        store_members(*given)
        seen.append(len(read))

    monkeypatch.setattr(graph, "store_members", store)
    flow = map_(tasks.echo, rows(), chunk=5).enqueue()
    assert seen == [10, 20, 30, 40, 50, 60]  # two messages of five rows each
    assert [step.size for step in FlowStep.objects.all()] == [12]
    run()
    calls = flow.result()
    assert [row["number"] for call in calls for row in call["args"][0]] == list(range(60))
