"""What a page reads does not grow with what is open: the statements, and what the database reads for each of them."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest
from django.db import transaction
from django.test import Client

from delayedq import desk
from delayedq.desk import figures, open_items, views
from delayedq.desk.admin import ItemAdmin
from delayedq.desk.models import Item, ItemChange, Skill, State
from delayedq.desk.rounds import close_withdrawn, forget_closed, let_wait
from delayedq.desk.visits import measured
from delayedq.models import Message
from delayedq.tasks import registered
from tests.desk.given import ALL, QUEUE, person, refund

pytestmark = [pytest.mark.slow, pytest.mark.urls("tests.desk.urls")]
FEW = 1_000
#: By database: PostgreSQL rightly sorts hundreds of rows rather than following an index.
MANY = {"postgresql": 10_000, "mysql": 5_000, "sqlite": 5_000}
PAGES = [
    "/desk/",
    "/desk/team/",
    f"/desk/team/?queue={QUEUE}",
    *(f"/desk/team/?only={only}" for only in ("unassigned", "assigned", "postponed", "in_review", "late")),
    "/desk/review/",
    "/desk/figures/",
    "/desk/automation/",
    "/admin/delayedq_desk/item/",
]
#: The states of what is open, in turn; every other one is of a person, and nine of ten that were not compared are done.
STATES = [State.WAITING, State.ASSIGNED, State.WAITING, State.POSTPONED, State.WAITING, State.REVIEW]


def fill(store, holder, count):
    """As many open items as this, as many waiting messages, and as many decided items; each was changed once."""
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
            decided_by=holder,
        )
        for number in range(1, count)
    )  # fmt: skip
    Item.objects.bulk_create(
        Item(
            message_id=-count - number, queue=QUEUE, kind=refund.module_path, opened_at=now - timedelta(minutes=number),
            mode="people", state=State.WITHDRAWN, is_open=False, closed_at=now - timedelta(seconds=number),
        )
        for number in range(count)
    )  # fmt: skip
    items = Item.objects.values_list("pk", flat=True)
    ItemChange.objects.bulk_create(ItemChange(item_id=pk, at=now, verb="assign", by=holder) for pk in items)


def open_item(now, holder, number, message_id):
    state = STATES[number % len(STATES)]
    held = state in {State.ASSIGNED, State.POSTPONED}
    ends_in = timedelta(hours=4 if number % 5 else -9, seconds=number)  # some have run out, and no round has come yet
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
        if sql.startswith("SELECT") and f"{TABLE}item" in sql and not sql.startswith(COUNTED_BY_DJANGO):
            self.sent.append((sql, parameters))
        return execute(sql, parameters, many, context)

    def costs(self):
        """Of each statement, in what the database counts."""
        cost = {"postgresql": buffers, "mysql": rows, "sqlite": steps}[self.connection.vendor]
        return [cost(self.connection, *statement) for statement in self.sent]


def buffers(connection, sql, parameters):
    """PostgreSQL: pages of tables and indexes, and the rows that were read in vain; a scan of the table is refused."""
    with transaction.atomic(using=connection.alias), connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {sql}", parameters)
        answer = cursor.fetchone()[0]
    plan = (json.loads(answer) if isinstance(answer, str) else answer)[0]["Plan"]
    nodes = [one for one in flat(plan) if one.get("Relation Name", one.get("Index Name", "")).startswith(TABLE)]
    assert "Seq Scan" not in {node["Node Type"] for node in nodes}, sql
    return max(sum(map(read, nodes)), plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


def rows(connection, sql, parameters):
    """MariaDB: what the storage engine was asked for, in rows and index entries."""
    with connection.cursor() as cursor:
        cursor.execute("FLUSH STATUS")
        cursor.execute(sql, parameters)
        cursor.fetchall()
        cursor.execute("SHOW SESSION STATUS LIKE 'Handler_read%%'", [])
        return sum(int(value) for _, value in cursor.fetchall())


def steps(connection, sql, parameters):
    """SQLite: the steps of its virtual machine, of which one row takes at least four, and one that is given 60."""
    count = 0

    def step():
        nonlocal count
        count += 1

    with connection.cursor() as cursor:
        connection.connection.set_progress_handler(step, 1)
        try:
            cursor.execute(sql, parameters)
            cursor.fetchall()
        finally:
            connection.connection.set_progress_handler(None, 1)
    return count


#: What a statement may cost: a page of 50 items, some counts up to 100, and what has run out up to 50. With MANY items
#: one that reads all that waits in a queue costs more.
MOST = {"postgresql": 400, "mysql": 400, "sqlite": 6_000}
#: Brings the statistics up to date.
ANALYSE = {"postgresql": "VACUUM ANALYZE {}", "mysql": "ANALYZE TABLE {}", "sqlite": "ANALYZE {}"}
TABLE = "delayedq_desk_"
#: The admin's own list counts what it shows, up to the last row.
COUNTED_BY_DJANGO = "SELECT COUNT(*) AS"


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
    monkeypatch.setattr(open_items, "LAPSED", 50)
    monkeypatch.setattr(ItemAdmin, "list_per_page", views.SHOWN)
    for module in ("rounds", "visits"):
        monkeypatch.setattr(f"delayedq.desk.{module}.WINDOW", 50)
    ann, boss = person("ann", *ALL), person("boss", superuser=True)
    Skill.objects.create(user=ann, name="french")
    client = Client()
    client.force_login(ann)

    def take():
        with transaction.atomic(using=store.alias):
            assert desk.take_next(ann, QUEUE)
            transaction.set_rollback(True, using=store.alias)

    def deal():
        with transaction.atomic(using=store.alias):
            assert desk.distribute(QUEUE, [ann], "round_robin", most=1) == 1
            transaction.set_rollback(True, using=store.alias)

    def behind():
        after = open_items.ItemPosition(0, store.now() + timedelta(minutes=FEW // 2), 1)
        assert len(client.get(f"/desk/team/?queue={QUEUE}&after={after}").context["rows"]) == 50

    def one():
        (item,) = open_items.page(desk.items(QUEUE).open(), "", 1).rows
        assert client.get(f"/desk/{item.pk}/").status_code == 200

    asked = {address: lambda address=address: client.get(address) for address in PAGES}
    asked |= {"a later page": behind, "an item": one, "take_next": take, "deal": deal}
    asked["the brake"] = lambda: measured(refund.module_path)
    asked["the sweep"] = lambda: close_withdrawn(store, FEW // 2, limit=100)
    asked["what has run out"] = lambda: let_wait(store, limit=100)
    asked["pruning"] = lambda: forget_closed(store, limit=100)
    return boss, asked


def test_what_a_page_reads_does_not_grow(store, connection, acts):
    boss, asked = acts
    counts, costs, many = {}, {}, MANY[connection.vendor]
    for size in (FEW, many):
        fill(store, boss, size)
        with connection.cursor() as cursor:
            for table in ("delayedq_desk_item", "delayedq_desk_itemchange", "delayedq_message"):
                cursor.execute(ANALYSE[connection.vendor].format(table))
        heard = {name: Heard(connection, act) for name, act in asked.items()}
        counts[size] = {name: len(one.sent) for name, one in heard.items()}
        # Of a small table a planner may rightly read all.
        for name, one in heard.items() if size == many else ():
            for (sql, _), cost in zip(one.sent, one.costs(), strict=True):
                costs[f"{name}: {sql}"] = cost
    most = MOST[connection.vendor]
    assert not {sql: cost for sql, cost in costs.items() if cost > most}
    assert counts[FEW].pop("what has run out") >= counts[many].pop("what has run out")  # which ends at its limit
    assert counts[FEW] == counts[many]
    of_tasks = counts[many].pop("/desk/automation/")  # which asks for each desk task that these tests define
    tasks = sum(hasattr(one, "desk") and one.desk is not None for one in registered.values())
    assert 0 < max(counts[many].values()) < 30, counts
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
    expected, queues = list(desk.items().in_order()), list(open_items.queues_of(desk.items()))
    assert queues == [f"{QUEUE}0", f"{QUEUE}1"]
    assert expected == sorted(expected, key=open_items.place)
    for read in (lambda after: open_items.page(desk.items(), after, 7), lambda after: of_queues(queues, after)):
        found, after = [], ""
        while after is not None:
            page = read(after)
            found, after = found + page.rows, page.after
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
    return open_items.page_of_queues(desk.items(), queues, after, 7)
