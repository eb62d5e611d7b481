"""Offers: what is created, updated and ignored, one by one and in batches."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest
from django.utils.timezone import get_current_timezone, is_aware

from delayedq.exceptions import InvalidKey, InvalidMessage, InvalidTime, PayloadTooLarge
from delayedq.models import Message
from delayedq.store.protocol import ClaimRequest, OfferOutcome, OnConflict
from tests.store.given import KIND, LANE, LEASE, NOW, at, claim, claim_one, live, live_keys, message

CREATED, UPDATED, IGNORED = OfferOutcome.CREATED, OfferOutcome.UPDATED, OfferOutcome.IGNORED


def offered(store, *offers, on_conflict=OnConflict.REPLACE):
    return [outcome.outcome for outcome in store.at(NOW).offer_many(offers, on_conflict)]


# One message


def test_offer_stores_every_field(store):
    offer = message(
        "a", '{"x": 1}', queue="sms", priority=-7, max_attempts=5, metadata='{"m": 2}', scheduled_at=at(0.000001)
    )
    created = store.at(NOW).offer(offer)

    row = live("a")
    assert created[:2] == (CREATED, row.pk)
    assert created.created_at in {NOW, None}  # MySQL returns none
    assert (row.queue, row.kind, row.priority, row.max_attempts) == ("sms", KIND, -7, 5)
    assert (row.payload, row.metadata, row.errors) == ('{"x": 1}', '{"m": 2}', None)
    assert (row.scheduled_at, row.scheduled_at_initially, row.created_at) == (at(0.000001), at(0.000001), NOW)
    assert (row.attempt, row.generation) == (0, 0)
    assert (row.lease_token, row.leased_until, row.leased_by) == (None, None, None)


def test_offer_without_a_time_is_due_at_once_on_the_databases_clock(store):
    store.offer(message("a", scheduled_at=None))

    (claimed,) = store.claim(ClaimRequest([LANE], 1, LEASE, "first"))
    assert claimed.scheduled_at == claimed.created_at
    assert abs(datetime.now(UTC) - claimed.created_at) < timedelta(seconds=5)


def test_keep_creates_a_new_key_and_leaves_a_known_one_as_it_was(store):
    first = store.at(NOW).offer(message("a", '"first"'), OnConflict.KEEP)
    second = store.at(NOW).offer(message("a", '"second"', scheduled_at=at(9)), OnConflict.KEEP)

    assert first.outcome == CREATED
    assert second[:2] == (IGNORED, first.id)
    assert (live("a").payload, live("a").scheduled_at) == ('"first"', NOW)


def test_replace_creates_then_updates_then_ignores_what_is_the_same(store):
    first = store.at(NOW).offer(message("a", "1"))

    assert store.at(NOW).offer(message("a", "2"))[:2] == (UPDATED, first.id)
    assert store.at(NOW).offer(message("a", "2", scheduled_at=at(0.001)))[:2] == (UPDATED, first.id)
    assert store.at(NOW).offer(message("a", "2", scheduled_at=at(0.001)))[:2] == (IGNORED, first.id)
    assert (live("a").payload, live("a").scheduled_at, live("a").created_at) == ("2", at(0.001), NOW)


@pytest.mark.parametrize(
    "changed", [{"queue": "sms"}, {"priority": 1}, {"max_attempts": 2}, {"metadata": "{}"}], ids=lambda c: next(iter(c))
)
def test_replace_takes_over_every_other_field_too(store, changed):
    store.at(NOW).offer(message("a"))

    assert store.at(NOW).offer(message("a", **changed)).outcome == UPDATED
    (name, value) = next(iter(changed.items()))
    assert getattr(live("a"), name) == value


def test_unkeyed_messages_never_conflict(store):
    ids = {store.at(NOW).offer(message(payload="1")).id for _ in range(3)}

    assert len(ids) == 3
    assert Message.objects.filter(pk__in=ids, key=None).count() == 3


def test_the_same_key_of_another_kind_is_another_message(store):
    assert store.at(NOW).offer(message("a", kind="one")).outcome == CREATED
    assert store.at(NOW).offer(message("a", kind="two")).outcome == CREATED


def test_a_key_can_be_offered_anew_after_its_message_ended(store):
    first = store.at(NOW).offer(message("a"))
    store.at(NOW).unschedule(KIND, "a")

    second = store.at(NOW).offer(message("a"), OnConflict.KEEP)
    assert second.outcome == CREATED
    assert second.id > first.id


def test_a_past_time_is_due_now_and_keeps_its_place(store):
    store.at(NOW).offer(message("now"))
    store.at(NOW).offer(message("past", scheduled_at=at(-3600)))

    assert [claimed.key for claimed in claim(store, 2)] == ["past", "now"]


# Keys


@pytest.mark.parametrize(
    "pair", [("a", "A"), ("a", "a "), ("a", " a"), ("resume", "résumé"), ("é", "e\u0301"), ("ß", "ss"), ("0", "00")]
)
def test_keys_compare_exactly(store, pair):
    assert offered(store, *map(message, pair)) == [CREATED, CREATED]
    assert [store.at(NOW).offer(message(key, "2")).outcome for key in pair] == [UPDATED, UPDATED]
    assert live_keys() == set(pair)


@pytest.mark.parametrize("key", ["k" * 200, "ключ \U0001f6eb 航班", "%s %(x)s {0} \\ ' \"", "1", "\n\t"], ids=repr)
def test_any_text_up_to_200_characters_is_a_key(store, key):
    assert store.at(NOW).offer(message(key)).outcome == CREATED
    assert claim_one(store).key == key


@pytest.mark.parametrize("key", ["", "k" * 201, "a\0b", "\ud800", 7, b"a"], ids=repr)
def test_any_other_key_is_refused_and_nothing_is_stored(store, key):
    with pytest.raises(InvalidKey):
        store.at(NOW).offer(message(key))
    with pytest.raises(InvalidKey):
        store.at(NOW).offer_many([message("good"), message(key)])
    assert not Message.objects.exists()


@pytest.mark.parametrize("when", [NOW.replace(tzinfo=None), NOW.date(), "2026-03-08", 7], ids=repr)
def test_what_is_no_aware_time_is_refused(store, when):
    with pytest.raises(InvalidTime):
        store.at(NOW).offer(message("a", scheduled_at=when))
    assert not Message.objects.exists()


@pytest.mark.parametrize("wrong", [{"queue": ""}, {"queue": "q" * 201}, {"kind": " "}, {"kind": "k" * 201}], ids=repr)
def test_queue_and_kind_must_fit(store, wrong):
    with pytest.raises(InvalidMessage):
        store.at(NOW).offer(message("a", **wrong))


def test_a_payload_is_measured_in_bytes(store, settings):
    settings.DELAYEDQ = {"MAX_PAYLOAD_BYTES": 4}

    assert store.at(NOW).offer(message("a", "éé")).outcome == CREATED
    with pytest.raises(PayloadTooLarge):
        store.at(NOW).offer(message("b", "ééé"))


def test_payloads_come_back_character_by_character(store):
    payload = '{"a": "\\u0000 %s %(now)s \U0001f6eb \\\\ \' é\u2028"}\n'
    store.at(NOW).offer(message("a", payload, metadata=payload))

    claimed = claim_one(store)
    assert (claimed.payload, claimed.metadata) == (payload, payload)


def test_times_come_back_aware_and_to_the_microsecond(store):
    zone = get_current_timezone()
    store.at(NOW).offer(message("a", scheduled_at=at(-0.000001).astimezone(zone)))

    claimed = claim_one(store)
    assert claimed.scheduled_at == claimed.scheduled_at_initially == at(-0.000001)
    assert isinstance(claimed.created_at, datetime)
    assert is_aware(claimed.created_at)


@pytest.mark.parametrize("keyed", [True, False], ids=["keyed", "unkeyed"])
@pytest.mark.parametrize("now", [[], [None]], ids=["given", "some given"])
def test_times_of_a_batch_keep_their_instant_in_whatever_zone_they_are(store, keyed, now):
    zones = [UTC, ZoneInfo("Asia/Kathmandu"), timezone(timedelta(hours=-11, seconds=-7)), ZoneInfo("America/New_York")]
    times = [
        at(0.000001),
        at(-3600),
        datetime(2126, 3, 8, 6, 59, 30, 5, UTC),
        datetime(9998, 12, 31, 23, 59, 59, 7, UTC),
    ]
    given = [moment.astimezone(zone) for moment, zone in zip(times, zones, strict=True)]
    offers = [message(f"k{n}" if keyed else None, str(n), scheduled_at=when) for n, when in enumerate([*given, *now])]
    offered(store, *offers)

    stored = Message.objects.order_by("payload").values_list("scheduled_at", "scheduled_at_initially")
    assert list(stored) == [(moment, moment) for moment in [*times, *(NOW for _ in now)]]


# Batches


def test_no_offers_have_no_outcomes(store):
    assert store.at(NOW).offer_many([]) == []


def test_batch_outcomes_are_in_the_order_of_the_offers(store):
    store.at(NOW).offer_many([message("b"), message("d", "2")])
    ids = {key: live(key).pk for key in "bd"}

    results = store.at(NOW).offer_many([message("e"), message("b"), message("a"), message("d"), message()])
    assert [result.outcome for result in results] == [CREATED, IGNORED, CREATED, UPDATED, CREATED]
    ids |= {"e": live("e").pk, "a": live("a").pk, None: live(None).pk}
    assert [result.id for result in results] == [ids[key] for key in ("e", "b", "a", "d", None)]


def test_batch_ids_rise_in_the_order_of_the_offers(store):
    results = store.at(NOW).offer_many([message(key) for key in "zyxabc"] + [message()] * 2)

    ids = [result.id for result in results]
    assert ids == sorted(set(ids))
    assert [claimed.id for claimed in claim(store, 8)] == ids


UNKEYED = [
    message(),
    message(queue="other", kind="other.kind", priority=-5, max_attempts=7, metadata='{"a": 1}'),
    message(payload='"\\u0000 {\\"NULL\\"}, NULL"', scheduled_at=at(60), metadata="null"),
]


@pytest.mark.parametrize("batch", [UNKEYED, *([one] * 2 for one in UNKEYED)], ids=["mixed", "a", "b", "c"])
def test_messages_without_keys_are_stored_as_they_were_offered(store, batch):
    results = store.at(NOW).offer_many(batch)
    for given, result in zip(batch, results, strict=True):
        assert result.outcome is CREATED
        stored = Message.objects.get(id=result.id)
        fields = given._asdict()
        assert (fields.pop("channel"), fields.pop("sizes")) == (None, ())
        assert {name: getattr(stored, name) for name in fields} == fields
        assert (stored.scheduled_at_initially, stored.created_at, stored.attempt) == (given.scheduled_at, NOW, 0)


def test_batch_updates_what_exists_and_creates_the_rest(store):
    store.at(NOW).offer(message("a", "1"))

    assert offered(store, message("a", "2"), message("b", "2")) == [UPDATED, CREATED]
    assert {key: live(key).payload for key in "ab"} == {"a": "2", "b": "2"}


def test_batch_that_keeps_leaves_what_exists_and_creates_the_rest(store):
    store.at(NOW).offer(message("a", "1"))

    assert offered(store, message("a", "2"), message("b", "2"), on_conflict=OnConflict.KEEP) == [IGNORED, CREATED]
    assert {key: live(key).payload for key in "ab"} == {"a": "1", "b": "2"}


def test_the_last_offer_of_a_key_in_a_batch_wins(store):
    batch = [message("a", "1"), message("b", "1"), message("a", "2"), message("a", "2"), message("a", "3")]

    assert offered(store, *batch) == [CREATED, CREATED, UPDATED, IGNORED, UPDATED]
    assert {key: live(key).payload for key in "ab"} == {"a": "3", "b": "1"}


def test_the_first_offer_of_a_key_in_a_batch_wins_if_it_is_to_keep(store):
    batch = [message("a", "1"), message("b", "1"), message("a", "2")]

    assert offered(store, *batch, on_conflict=OnConflict.KEEP) == [CREATED, CREATED, IGNORED]
    assert {key: live(key).payload for key in "ab"} == {"a": "1", "b": "1"}


KEYED = [one._replace(key=f"key {number}") for number, one in enumerate(UNKEYED)]
COUNTED = {
    "without keys": UNKEYED,
    "with keys": KEYED,
    "both": [*UNKEYED, *KEYED],
    "alike": [message("b"), message("a")],
    "a key twice": [message("a", "1"), message("b"), message("a", "2"), message()],
}


@pytest.mark.parametrize("batch", COUNTED.values(), ids=COUNTED)
def test_messages_that_are_only_counted_are_stored_as_others(store, batch):
    def stored(offer):
        offer()
        rows = Message.objects.order_by("id").values()
        found = [{name: value for name, value in row.items() if name != "id"} for row in rows]
        Message.objects.all().delete()
        return found

    expected = stored(lambda: store.at(NOW).offer_many(batch))
    assert stored(lambda: store.at(NOW).offer_counted(batch)) == expected
    assert store.at(NOW).offer_counted(batch) == len(batch)
    assert store.at(NOW).offer_counted(KEYED) == len(KEYED)  # as they stand already, or new


def test_messages_that_are_only_counted_are_replaced_by_key_each_at_its_own_time(store):
    keys = ["z", "a", "Z", "\u00e9", "\U0001f600", "\uffff"]  # a sort by code points is not that of most collations
    for payload in ("1", "2"):
        batch = [message(key, payload, scheduled_at=at(number)) for number, key in enumerate(keys)]
        assert store.at(NOW).offer_counted(batch) == len(keys)

    rows = Message.objects.order_by("scheduled_at").values_list("key", "payload", "generation", "scheduled_at")
    assert [*rows] == [(key, "2", 1, at(number)) for number, key in enumerate(keys)]


def test_one_bad_offer_keeps_a_batch_of_any_size_from_being_stored(store):
    offers = [message(str(number)) for number in range(10_001)]

    with pytest.raises(InvalidKey):
        store.at(NOW).offer_many([*offers, message("")])
    assert not Message.objects.exists()


@pytest.mark.slow
@pytest.mark.parametrize("size", [20_000, 70_000])
def test_a_batch_may_have_more_keys_than_a_statement_has_parameters(store, size):
    results = store.at(NOW).offer_many(message(f"key-{number}") for number in range(size))

    assert {result.outcome for result in results} == {CREATED}
    assert Message.objects.count() == size
    assert [live(f"key-{number}").pk for number in (0, size - 1)] == [results[0].id, results[-1].id]
