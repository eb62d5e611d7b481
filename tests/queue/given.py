"""What the tests of queues say."""

from __future__ import annotations

from tests.app.models import Mark


class Boom(Exception):  # noqa: N818
    """A consumer fails."""


def boom():
    raise Boom("boom")


def mark_and_boom(name="half"):
    """An effect, and then a failure."""
    Mark.objects.create(name=name)
    raise Boom("boom")
