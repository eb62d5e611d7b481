from __future__ import annotations

from dataclasses import FrozenInstanceError
from datetime import timedelta

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.test import override_settings

from delayedq.conf import Settings, get_settings

MINUTE = timedelta(minutes=1)


@override_settings(DELAYEDQ={})
def test_nothing_need_be_set(settings):
    del settings.DELAYEDQ
    get_settings.cache_clear()
    assert get_settings() == Settings()


def test_the_defaults():
    assert Settings() == Settings(
        LEASE=timedelta(seconds=60),
        POLL_INTERVAL=timedelta(seconds=3),
        ACKNOWLEDGE="batched",
        RETENTION=timedelta(days=30),
        MAX_PAYLOAD_BYTES=1_000_000,
    )


def test_what_is_set_is_taken_and_the_rest_stays(settings):
    settings.DELAYEDQ = {"LEASE": MINUTE / 2, "RETENTION": None, "MAX_PAYLOAD_BYTES": 7}
    found = get_settings()
    assert (found.LEASE, found.RETENTION, found.MAX_PAYLOAD_BYTES) == (MINUTE / 2, None, 7)
    assert found.POLL_INTERVAL == Settings().POLL_INTERVAL


def test_settings_are_read_once_and_again_when_they_are_overridden():
    before = get_settings()
    with override_settings(DELAYEDQ={"LEASE": 2 * MINUTE}):
        assert get_settings().LEASE == 2 * MINUTE
        assert get_settings() is get_settings()
    assert get_settings() == before


def test_settings_are_frozen():
    with pytest.raises(FrozenInstanceError):
        get_settings().LEASE = MINUTE


@pytest.mark.parametrize("name", ["LEASES", "lease", "CRON_", 7, ""])
def test_an_unknown_key_is_named_with_its_path_and_what_is_known(settings, name):
    settings.DELAYEDQ = {name: MINUTE}
    with pytest.raises(ImproperlyConfigured) as raised:
        get_settings()
    assert str(raised.value).startswith(f"DELAYEDQ[{name!r}] is unknown; known are LEASE, POLL_INTERVAL, ACKNOWLEDGE")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("LEASE", timedelta()),
        ("LEASE", -MINUTE),
        ("LEASE", timedelta(microseconds=1)),
        ("LEASE", timedelta.max),
        ("ANSWER_WITHIN", timedelta(microseconds=1)),
        ("POLL_INTERVAL", timedelta.max),
        ("CRON_GRACE", timedelta.max),
        ("RETENTION", timedelta.max),
        ("LEASE", 60),
        ("LEASE", "60s"),
        ("LEASE", None),
        ("POLL_INTERVAL", timedelta()),
        ("POLL_INTERVAL", 0.5),
        ("POLL_INTERVAL", None),
        ("ACKNOWLEDGE", "sometimes"),
        ("ACKNOWLEDGE", None),
        ("RETENTION", timedelta()),
        ("RETENTION", 30),
        ("MAX_PAYLOAD_BYTES", 0),
        ("MAX_PAYLOAD_BYTES", -1),
        ("MAX_PAYLOAD_BYTES", 1e6),
        ("MAX_PAYLOAD_BYTES", "1M"),
        ("MAX_PAYLOAD_BYTES", None),
        ("REDACT", ".."),
        ("REDACT", ".relative"),
        ("METADATA_FROM", ["a..b"]),
        ("AROUND_ATTEMPTS", [None]),
    ],
)
def test_a_wrong_value_is_named_with_its_path(settings, name, value):
    settings.DELAYEDQ = {name: value}
    with pytest.raises(ImproperlyConfigured) as raised:
        get_settings()
    assert str(raised.value).startswith(f"DELAYEDQ[{name!r}] must be ")
    assert str(raised.value).endswith(f" not {value!r}.")


@pytest.mark.parametrize("value", ["db.internal", "hots=db", "mysql://db/queue", "host"])
def test_an_address_of_the_listener_that_can_not_be_read_is_refused(settings, value):
    settings.DELAYEDQ = {"LISTENER_DSN": value}
    with pytest.raises(ImproperlyConfigured, match=r"^DELAYEDQ\['LISTENER_DSN'\] must be a URL \(postgresql://"):
        get_settings()


@pytest.mark.parametrize("value", ["postgresql://db/queue", "postgres:///queue?host=/tmp", "host=db dbname=queue"])
def test_the_address_of_the_listener_is_a_url_or_keywords(settings, value):
    settings.DELAYEDQ = {"LISTENER_DSN": value}
    assert value == get_settings().LISTENER_DSN


@pytest.mark.parametrize("given", [None, [], "LEASE", [("LEASE", MINUTE)], Settings()], ids=repr)
def test_it_is_a_dict(settings, given):
    settings.DELAYEDQ = given
    with pytest.raises(ImproperlyConfigured, match=f"DELAYEDQ must be a dict, not {type(given).__name__}"):
        get_settings()


def test_a_wrong_setting_is_told_again_each_time(settings):
    settings.DELAYEDQ = {"LEASE": 0}
    for _ in range(2):
        with pytest.raises(ImproperlyConfigured):
            get_settings()
