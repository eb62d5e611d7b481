"""What the tests of flows are made of: tasks that do as they are told, and the states of flows."""

from __future__ import annotations

from delayedq.models import FlowStep
from delayedq.testing import run_due
from tests.app import tasks


def does(name, body):
    """A name for which `tasks.play` calls this body."""
    tasks.bodies[name] = body
    return name


def call(name, body=lambda *args: args[-1] if args else None):
    """A call of a body, which gets the results of what comes before."""
    return tasks.play.s(does(name, body))


def fails(name):
    def fail(*args):
        raise ValueError(name)

    return tasks.play.using(max_attempts=1).s(does(name, fail))


def states(flow):
    return {step.name: str(step.state) for step in flow.steps()}


def run(**options):
    """Run what is due; how it ended."""
    return [attempt.outcome for attempt in run_due(raise_failures=False, **options)]


def waiting_rows():
    return FlowStep.objects.filter(state="waiting").count()
