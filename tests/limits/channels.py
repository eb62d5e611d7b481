"""The words of the tests of channels: rules, claims, and what is left."""

from __future__ import annotations

from datetime import timedelta

from delayedq.limits.channels import Channels
from delayedq.limits.requests import Rules
from delayedq.limits.rules import Limit, Rate
from delayedq.models import Channel, ChannelMessage, ChannelNotice
from tests.store.given import KIND, LEASE, NOW, message, succeed

UNLIMITED = Rules()


def in_channel(channel, key=None, **fields):
    return message(key, channel=channel, **fields)


def offer(store, *channels, now=NOW, **fields):
    """One message in each of these channels, all at once."""
    return store.at(now).offer_many([in_channel(channel, **fields) for channel in channels])


def one_by_one(number=1):
    return Rules(channel=Limit(concurrency=number))


def at_a_rate(count, seconds=1.0, burst=None):
    return Rules(channel=Limit(rate=Rate(count, timedelta(seconds=seconds), burst)))


def shared(limit, scope="mail", channel=None):
    return Rules(((scope, limit),), channel)


def claims(store, limit=100, *, rules=UNLIMITED, now=NOW, lease=LEASE, worker="first", expired=True):
    """The messages that a claim takes."""
    return asked(store, limit, rules=rules, now=now, lease=lease, worker=worker, expired=expired).claimed


def asked(store, limit=100, *, rules=UNLIMITED, now=NOW, lease=LEASE, worker="first", expired=True):
    """What a claim answers."""
    return Channels.of(store.at(now)).claim(lambda queue, kind: rules, limit, lease, worker, expired=expired)


def channels_of(claimed):
    """The channels of these messages, in their order."""
    names = dict(Channel.objects.values_list("id", "name"))
    places = dict(ChannelMessage.objects.values_list("message_id", "channel_id"))
    return [names.get(places.get(one.id)) for one in claimed]


def left_behind():
    """How many rows of channels there are, of each kind."""
    return tuple(model.objects.count() for model in (Channel, ChannelMessage, ChannelNotice))


def finish(store, *claimed, now=NOW, seconds=1.0):
    return store.at(now).settle([succeed(one, started=seconds, finished=0.0) for one in claimed], "first")


__all__ = ["KIND", "NOW", "asked", "at_a_rate", "channels_of", "claims", "finish", "in_channel", "left_behind", "offer"]
