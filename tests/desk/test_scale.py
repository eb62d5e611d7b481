"""What a page reads does not grow with what is open: the statements, their plans and rows, on PostgreSQL."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest
from django.db import transaction
from django.test import Client

from delayedq import desk
from delayedq.desk import figures, paging, views
from delayedq.desk.models import Item, Skill, State
from delayedq.desk.sweeping import close_withdrawn, forget_closed
from delayedq.desk.visiting import measured
from delayedq.models import Message
from delayedq.tasks import registered
from tests.desk.given import ALL, QUEUE, person, refund

pytestmark = pytest.mark.urls("tests.desk.urls")
FEW, MANY = 1_000, 10_000
PAGES = [
    "/desk/",
    "/desk/team/",
    f"/desk/team/?queue={QUEUE}",
    "/desk/team/?only=late",
    "/desk/review/",
    "/desk/figures/",
    "/desk/automation/",
]
#: The states of what is open, in turn; every other one is of a person, and nine of ten that were not compared are done.
STATES = [State.WAITING, State.ASSIGNED, State.WAITING, State.POSTPONED, State.WAITING, State.REVIEW]


def fill(store, holder, count):
    """As many open items as this, as many waiting messages, and as many decided items."""
    now = store.now()
    Item.objects.all().delete()
    Message.objects.all().delete()
    messages = Message.objects.bulk_create(
        Message(
            queue=QUEUE, kind=refund.module_path, payload='{"args":[1]}', scheduled_at=now + timedelta(days=1),
            scheduled_at_initially=now, created_at=now, max_attempts=1,
        )
        for _ in range(count)
    )  # fmt: skip
    Item.objects.bulk_create(open_item(now, holder, number, message.pk) for number, message in enumerate(messages))
    Item.objects.bulk_create(
        Item(
            message_id=-number, queue=QUEUE, kind=refund.module_path, opened_at=now - timedelta(days=1 + number % 90),
            decided_at=now - timedelta(days=20), mode="automatic", state=State.DONE, is_open=False,
            agreed=None if number % 10 else True, is_automated=True, closed_at=now - timedelta(days=40, minutes=number),
        )
        for number in range(1, count)
    )  # fmt: skip


def open_item(now, holder, number, message_id):
    state = STATES[number % len(STATES)]
    held = state in {State.ASSIGNED, State.POSTPONED}
    ends_in = timedelta(hours=-1 if number < FEW // 2 else 4, seconds=number)  # some have run out
    return Item(
        message_id=message_id, queue=f"{QUEUE}{number % 3 or ''}", kind=refund.module_path,
        opened_at=now - timedelta(minutes=number), due_at=now + timedelta(minutes=number) if number % 4 else None,
        priority=number % 2, skill="latin" if number % 5 else "", mode="people", state=state,
        holder=holder if number % 500 == 1 else None, until=now + ends_in if held else None,
    )  # fmt: skip


class Heard:
    """The statements about items that were sent, and what each of them reads."""

    def __init__(self, connection, act):
        self.sent, self.connection = [], connection
        with connection.execute_wrapper(self):
            act()

    def __call__(self, execute, sql, parameters, many, context):
        if sql.startswith("SELECT") and "delayedq_desk_item" in sql:
            self.sent.append((sql, parameters))
        return execute(sql, parameters, many, context)

    def plans(self):
        """For each statement the nodes that read items."""
        return [self._nodes(*statement) for statement in self.sent]

    def _nodes(self, sql, parameters):
        with transaction.atomic(using="postgresql"), self.connection.cursor() as cursor:
            cursor.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {sql}", parameters)
            answer = cursor.fetchone()[0]
        top = (json.loads(answer) if isinstance(answer, str) else answer)[0]["Plan"]
        return [one for one in flat(top) if one.get("Relation Name", one.get("Index Name", "")).startswith(TABLE)]


TABLE = "delayedq_desk_"


def flat(plan):
    yield plan
    for child in plan.get("Plans", []):
        yield from flat(child)


def read(node):
    """How many rows it looked at."""
    removed = node.get("Rows Removed by Filter", 0) + node.get("Rows Removed by Index Recheck", 0)
    return (node["Actual Rows"] + removed) * node["Actual Loops"]


@pytest.fixture
def acts(store, monkeypatch):
    """What is asked, with the largest number of rows that one statement of it may read."""
    monkeypatch.setattr(figures, "BOUND", 100)
    monkeypatch.setattr(views, "COUNTED", 100)
    for module in ("sweeping", "visiting"):
        monkeypatch.setattr(f"delayedq.desk.{module}.WINDOW", 50)
    ann, boss = person("ann", *ALL), person("boss", superuser=True)
    Skill.objects.create(user=ann, name="french")
    client = Client()
    client.force_login(ann)

    def take():
        with transaction.atomic(using=store.alias):
            assert desk.take_next(ann, QUEUE)
            transaction.set_rollback(True, using=store.alias)

    def behind():
        after = paging.Place(0, store.now() + timedelta(minutes=FEW // 2), 1)
        assert len(client.get(f"/desk/team/?queue={QUEUE}&after={after}").context["rows"]) == 50

    def one():
        (item,) = paging.page(desk.items(QUEUE).open(), "", 1).rows
        assert client.get(f"/desk/{item.pk}/").status_code == 200

    asked = {address: lambda address=address: client.get(address) for address in PAGES}
    asked |= {"a later page": behind, "an item": one, "take_next": take}
    asked["the brake"] = lambda: measured(refund.module_path)
    asked["the sweep"] = lambda: close_withdrawn(store, FEW // 2, limit=100)
    asked["pruning"] = lambda: forget_closed(store, limit=100)
    return boss, asked


@pytest.mark.parametrize("alias", ["postgresql"], indirect=True)
def test_what_a_page_reads_does_not_grow(store, connection, acts):
    boss, asked = acts
    counts = {}
    for size in (FEW, MANY):
        fill(store, boss, size)
        with connection.cursor() as cursor:
            cursor.execute("VACUUM ANALYZE delayedq_desk_item")
        heard = {name: Heard(connection, act) for name, act in asked.items()}
        counts[size] = {name: len(one.sent) for name, one in heard.items()}
        # Of a small table a planner may rightly read all.
        for name, one in heard.items() if size == MANY else ():
            for (sql, _), nodes in zip(one.sent, one.plans(), strict=True):
                assert "Seq Scan" not in {node["Node Type"] for node in nodes}, f"{name}, {size}: {sql}"
                assert sum(map(read, nodes)) <= 400, f"{name}, {size}: {sql}"
    assert counts[FEW] == counts[MANY]
    of_tasks = counts[MANY].pop("/desk/automation/")  # which asks for each desk task that these tests define
    tasks = sum(hasattr(one, "desk") and one.desk is not None for one in registered.values())
    assert 0 < max(counts[MANY].values()) < 25, counts
    assert 0 < of_tasks < 10 + 2 * tasks, (of_tasks, tasks)


def test_pages_go_on_where_the_last_one_ended(store):
    """No item twice, none left out, in one order, also where priorities, dates or both are the same."""
    ann, now = person("ann", *ALL), store.now()
    Item.objects.bulk_create(
        Item(
            message_id=-number, queue=f"{QUEUE}{number % 2}", kind="k", opened_at=now, mode="people",
            priority=number % 3, due_at=now + timedelta(days=number % 4) if number % 4 else None,
        )
        for number in range(30)
    )  # fmt: skip
    expected, queues = list(desk.items().in_order()), list(paging.queues_of(desk.items()))
    assert queues == [f"{QUEUE}0", f"{QUEUE}1"]
    assert expected == sorted(expected, key=paging.place)
    for read in (lambda after: paging.page(desk.items(), after, 7), lambda after: of_queues(queues, after)):
        found, after = [], ""
        while after is not None:
            rows, after = read(after)
            found += rows
        assert found == expected
    client = Client()
    client.force_login(ann)
    for hostile in ("1.2", "x.y.z", "1.99999999999999999999.3", "99999999.1.1", "1.1.-1", f"1.1.{2**64}"):
        assert [row.item for row in client.get("/desk/team/", {"after": hostile}).context["rows"]] == expected


@pytest.mark.parametrize("only", ["assigned", "postponed"])
def test_what_ends_is_shown_in_that_order_page_by_page(store, monkeypatch, only):
    """What has run out is left out; at the same moment the older item comes first."""
    monkeypatch.setattr(views, "SHOWN", 3)
    ann, now = person("ann", *ALL), store.now()
    states = {"assigned": (State.ASSIGNED, State.REJECTED), "postponed": (State.POSTPONED, State.POSTPONED)}[only]
    Item.objects.bulk_create(
        Item(
            message_id=-number, queue=f"{QUEUE}{number % 2}", kind="k", opened_at=now, mode="people",
            state=states[number % 3 % 2], until=now + timedelta(hours=number % 4 - 1, minutes=1), priority=number % 3,
        )
        for number in range(20)
    )  # fmt: skip
    expected = list(Item.objects.filter(until__gt=now).order_by("until", "pk"))
    assert len(expected) == 15
    client, found, after = Client(), [], ""
    client.force_login(ann)
    while after is not None:
        page = client.get("/desk/team/", {"only": only, "after": after}).context
        found += [row.item for row in page["rows"]]
        after = page["after"]
    assert found == expected
    of_one = client.get("/desk/team/", {"only": only, "queue": f"{QUEUE}1"}).context["rows"]
    assert [row.item for row in of_one] == [item for item in expected if item.queue == f"{QUEUE}1"][:3]
    hostile = client.get("/desk/team/", {"only": only, "after": "1.2"}).context["rows"]
    assert [row.item for row in hostile] == expected[:3]


def of_queues(queues, after):
    return paging.page_of_queues(desk.items(), queues, after, 7)
