"""What is no flow is refused at the call, and nothing is stored."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db import transaction

from delayedq import Flow, as_completed, cancel_all, chain, get_flow, group, map_, wait_all
from delayedq.compat import InvalidTask
from delayedq.exceptions import DelayedQError, InvalidFlow, NotStorable, PayloadTooLarge
from delayedq.flows.result import FlowResult
from delayedq.flows.rules import MAX_NESTING, MAX_STEPS, MAX_WAITING
from delayedq.models import Flow as Row
from delayedq.models import FlowMember, FlowStep, Message
from tests.app import tasks
from tests.flows.given import run


@pytest.fixture(autouse=True)
def _nothing_stored(alias):
    yield
    assert [model.objects.count() for model in (Row, FlowStep, FlowMember, Message)] == [0] * 4


def graph(**steps):
    flow = Flow("bad")
    for name, after in steps.items():
        flow.add(name, tasks.nothing.s(), after=after)
    return flow


def nested(depth):
    part = tasks.nothing.si()
    for _ in range(depth):
        part = chain(part)
    return part


BAD = {
    "a cycle": (lambda: graph(a=["c"], b=["a"], c=["b"]).enqueue(), r"wait for each other: [abc] -> [abc] -> [abc] ->"),
    "itself": (lambda: graph(a=["a"]).enqueue(), "wait for each other: a -> a"),
    "unknown": (lambda: graph(a=[], b=["z"]).enqueue(), "<step 'b'> comes after 'z', which is not a step .* 'a', 'b'"),
    "nothing": (lambda: Flow("none").enqueue(), "has no steps"),
    "no call": (lambda: group(iter(())).enqueue(), "has no calls at all"),
    "twice": (lambda: graph(a=[]).add("a", tasks.nothing.s()), "has a step 'a' already"),
    "no name": (lambda: Flow("x").add(" ", tasks.nothing.s()), "The name of a step is a text of 1 to 200"),
    "a number as name": (lambda: Flow("x").add(5, tasks.nothing.s()), "The name of a step is a text .*, not 5"),
    "None as name": (lambda: Flow(None), "The name of a flow is a text .*, not None"),
    "nesting": (lambda: nested(MAX_NESTING + 1).enqueue(), f"at most {MAX_NESTING} deep"),
    "not a part": (lambda: chain(tasks.nothing), "is a call such as task.s"),
    "not a call": (lambda: Flow("x").add("a", tasks.nothing), "is a call such as task.s"),
    "in a group": (lambda: group(iter([tasks.nothing.s(), 7])).enqueue(), "is a call such as task.s.*not 7"),
    "a chain in an iterator": (
        lambda: group(chain(tasks.nothing.s()) for _ in range(2)).enqueue(),
        "is a call such as task.s.*Give the group a list of its chains and groups",
    ),
    "no group": (lambda: group(7), "not of 7"),
    "empty": (chain, "at least one part"),
    "policy": (lambda: Flow("x", policy="wait"), "'stop' or 'continue', not 'wait'"),
    "deadline": (lambda: Flow("x", deadline=timedelta()), "a timedelta above 0"),
    "on_failure": (lambda: Flow("x", on_failure=tasks.nothing.s()), "on_failure of a flow is a task"),
    "on_failure's": (lambda: Flow("x", on_failure=tasks.depart), "missing a required argument: 'departure'"),
    "when": (lambda: Flow("x").add("a", tasks.nothing.s(), when="later"), "'succeeded', 'failed', 'ended', or when"),
    "when first": (lambda: Flow("x").add("a", tasks.nothing.s(), when="ended"), "has no predecessor"),
    "chunk": (lambda: map_(tasks.nothing, [1], chunk=0), "at least 1 row"),
    "a chunk that is no number": (lambda: map_(tasks.nothing, [1], chunk=True), "at least 1 row, not True"),
    "commits that are no number": (lambda: chain(tasks.nothing.s()).enqueue(commit_every=True), "at least 1, not True"),
    "commits": (lambda: chain(tasks.nothing.s()).enqueue(commit_every=0), "at least 1, not 0"),
    "waiting": (
        lambda: chain(tasks.nothing.s(), group(tasks.nothing.s() for _ in range(MAX_WAITING + 1))).enqueue(),
        "at most 1,000 calls",
    ),
    "many": (lambda: chain(*[tasks.nothing.si()] * (MAX_STEPS + 1)).enqueue(), "at most 1,000 steps"),
    "unstored": (lambda: get_flow(4711), "no flow 4711"),
    "no number": (lambda: get_flow("a"), "is a number, not 'a'"),
    "None as number": (lambda: get_flow(None), "is a number, not None"),
}


@pytest.mark.parametrize("what", BAD)
def test_what_is_no_flow(alias, what):
    attempt, said = BAD[what]
    with pytest.raises(DelayedQError, match=said) as refused:
        attempt()
    assert isinstance(refused.value, InvalidFlow | ValueError)


def test_arguments_that_cannot_be_stored(alias):
    with pytest.raises(NotStorable, match="argument 'args': <object>"):
        tasks.echo.s(object())
    with pytest.raises(NotStorable, match="argument 'x'"):
        tasks.echo.si(x=object())


def test_arguments_that_do_not_fit(alias):
    with pytest.raises(TypeError, match="depart: missing a required argument: 'departure'"):
        chain(tasks.nothing.s(), tasks.depart.s()).enqueue()


def test_a_payload_too_large_in_a_step_that_waits(alias, settings):
    settings.DELAYEDQ = {"MAX_PAYLOAD_BYTES": 100}
    with pytest.raises(PayloadTooLarge):
        chain(tasks.nothing.s(), tasks.echo.s("x" * 100)).enqueue()


def test_an_error_of_the_rows_stores_nothing(alias):
    def rows():
        yield from range(10)
        raise OSError("the file has gone")

    with pytest.raises(OSError, match="has gone"):
        map_(tasks.echo, rows(), chunk=2).enqueue()


def test_calls_of_an_iterator_are_not_read_twice(alias):
    def calls():
        yield tasks.nothing.s()
        raise OSError("the file has gone")

    flow, made = Flow("x"), group(calls()).then(tasks.nothing.s())
    flow.add("group", group(calls()))
    with transaction.atomic(using=alias), pytest.raises(InvalidFlow, match="outside of any other"):
        flow.enqueue(commit_every=1)  # it has read nothing then
    for again in (flow, made):
        with pytest.raises(OSError, match="has gone"):
            again.enqueue()
    with pytest.raises(InvalidFlow, match=r"'x' could not be stored before, .* an iterator"):
        flow.enqueue()
    with pytest.raises(InvalidFlow, match="come from an iterator, which was read before"):
        made.enqueue()


def test_calls_of_an_iterator_that_raised_at_once_are_no_empty_group(alias):
    def calls():
        raise OSError("the file has gone")
        yield

    flow = Flow("x")
    flow.add("group", group(calls()))
    flow.add("end", tasks.nothing.s(), after="group")
    with pytest.raises(OSError, match="has gone"):
        flow.enqueue()
    with pytest.raises(InvalidFlow, match=r"'x' could not be stored before, .* an iterator"):
        flow.enqueue()


def test_an_enqueued_flow_takes_no_more(alias):
    flow = graph(a=[])
    result = flow.enqueue()
    with pytest.raises(InvalidFlow, match="is enqueued: no steps can be added"):
        flow.add("b", tasks.nothing.s())
    with pytest.raises(InvalidFlow, match="is enqueued already"):
        flow.enqueue()
    with pytest.raises(InvalidFlow, match="no step 'z'"):
        result.result("z")
    run()
    with pytest.raises(InvalidFlow, match="is succeeded: only one that has failed"):
        result.retry()
    for model in (Row, FlowStep, FlowMember):
        model.objects.all().delete()


def test_transactions_of_its_own_are_not_possible_in_another(alias):
    with transaction.atomic(using=alias), pytest.raises(InvalidFlow, match="outside of any other"):
        chain(tasks.nothing.s()).enqueue(commit_every=10)


def test_a_backend_without_messages_has_no_flows(alias, settings):
    settings.TASKS = {"default": {"BACKEND": "delayedq.testing.DummyBackend", "QUEUES": []}}
    with pytest.raises(InvalidFlow, match="keeps no messages in a database"):
        chain(tasks.nothing.s()).enqueue()


def test_a_queue_that_the_backend_does_not_have(alias, settings):
    settings.TASKS = {"default": {"BACKEND": "delayedq.backend.DelayedQBackend", "QUEUES": ["other"]}}
    with pytest.raises(InvalidTask):
        chain(tasks.nothing.s()).enqueue()


def test_a_condition_is_the_result_of_one_call(alias):
    flow = Flow("x")
    some = flow.add("some", group(tasks.nothing.s()))
    with pytest.raises(InvalidFlow, match="is a list"):
        flow.add("b", tasks.nothing.s(), when=some.result)
    other = Flow("y").add("theirs", tasks.nothing.s())
    with pytest.raises(InvalidFlow, match="a step of another flow"):
        flow.add("c", tasks.nothing.s(), after=other)


@pytest.mark.parametrize(
    "refused", [{"after": ["a", "theirs"]}, {"after": ["a"], "when": "fialed"}], ids=["after", "when"]
)
def test_a_step_that_is_refused_is_not_in_the_flow(alias, refused):
    flow, theirs = Flow("x"), Flow("y").add("theirs", tasks.nothing.s())
    flow.add("a", tasks.nothing.s())
    refused = refused | {"after": [theirs if name == "theirs" else name for name in refused["after"]]}
    with pytest.raises(InvalidFlow):
        flow.add("pay", tasks.nothing.s(), **refused)

    flow.add("pay", tasks.nothing.s(), after="a")
    assert flow.size == 2


@pytest.mark.parametrize("how", ["enqueue", "schedule_in", "enqueue_many", "enqueue_bulk", "deep", "metadata"])
def test_a_result_outside_of_its_flow_is_refused(alias, how):
    """Also that of a flow that is stored: its step may not have ended when the message runs."""
    flow = Flow("outside")
    result = flow.add("first", tasks.nothing.s()).result
    calls = {
        "enqueue": lambda: tasks.echo.enqueue(result),
        "schedule_in": lambda: tasks.echo.schedule_in(timedelta(minutes=1), result, key="a"),
        "enqueue_many": lambda: tasks.echo.enqueue_many([((7,), {}), ((), {"what": result})]),
        "enqueue_bulk": lambda: tasks.echo.enqueue_bulk([((7,), {}), ((result,), {})]),
        "deep": lambda: tasks.echo.enqueue([{"a": [result]}]),
        "metadata": lambda: tasks.echo.using(metadata={"a": result}).enqueue(),
    }
    with pytest.raises(
        (NotStorable, InvalidTask), match=r"only another step of its flow can get it.*flow\.add\(name, task\.s"
    ):
        calls[how]()
    with transaction.atomic(using=alias):
        flow.enqueue()
        with pytest.raises((NotStorable, InvalidTask), match=r"get_flow\(id\)\.result\(name\)"):
            calls[how]()
        transaction.set_rollback(True, using=alias)


OUTSIDE = {
    "enqueue": tasks.echo.enqueue,
    "deep in the arguments": lambda result: tasks.echo.enqueue({"key": [result]}),
    "a key of a dict": lambda result: tasks.echo.enqueue({result: 1}),
    "schedule_in": lambda result: tasks.echo.schedule_in(timedelta(hours=1), result),
    "enqueue_many": lambda result: tasks.echo.enqueue_many([((result,), {})]),
    "enqueue_bulk": lambda result: tasks.echo.enqueue_bulk([((result,), {})]),
}


@pytest.mark.parametrize("how", OUTSIDE)
def test_the_result_of_a_step_in_a_call_outside_of_its_flow(alias, how):
    flow = Flow("x")
    step = flow.add("a", tasks.nothing.s())
    with pytest.raises(NotStorable, match=r"only another step of its flow can get it. Add the call as flow.add"):
        OUTSIDE[how](step.result)


@pytest.mark.parametrize("verb", [wait_all, cancel_all, lambda flows: list(as_completed(flows))])
def test_a_flow_in_the_place_of_a_result(alias, verb):
    with pytest.raises(TypeError, match=r"not <flow 7>. Call the method of the flow itself for that."):
        verb([FlowResult(7)])
