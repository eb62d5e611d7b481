"""Django's own TestCase, as projects write it: its transaction, its callbacks, and its async tests."""

from __future__ import annotations

from contextlib import suppress

from asgiref.sync import sync_to_async
from django.core.management import CommandError, call_command
from django.db import transaction
from django.test import TestCase

from delayedq import chain, current_message, map_
from delayedq.exceptions import InvalidFlow
from delayedq.models import FinishedMessage, Message, RecordedStep
from delayedq.testing import run_due
from tests.app import tasks
from tests.app.models import Mark


class InTestCase(TestCase):
    def test_one_leaves_nothing_behind(self):
        self.assert_it_runs()

    def test_and_another_begins_anew(self):
        self.assert_it_runs()

    def assert_it_runs(self):
        assert not FinishedMessage.objects.exists()
        tasks.mark.enqueue("a")
        tasks.amark.enqueue("b")
        assert [attempt.outcome for attempt in run_due()] == ["succeeded", "succeeded"]
        assert Mark.objects.count() == 2

    def test_code_that_enqueues_after_its_commit_is_told_to_by_the_test(self):
        with self.captureOnCommitCallbacks(execute=True):
            transaction.on_commit(lambda: tasks.mark.enqueue("a"))
            assert run_due() == []
        assert len(run_due()) == 1

    def test_steps_are_kept_within_the_transaction_of_the_test(self):
        tasks.bodies["steps"] = lambda: current_message().step("mark", Mark.objects.create, name="a").name
        tasks.play.enqueue("steps")
        assert [attempt.outcome for attempt in run_due()] == ["succeeded"]
        assert (Mark.objects.count(), RecordedStep.objects.count()) == (1, 1)

    def test_the_last_report_stands_also_if_its_step_was_rolled_back(self):
        def fails():
            current_message().progress(5, 10)
            raise ValueError

        def body():
            with suppress(ValueError):
                current_message().step("fails", fails)

        tasks.bodies["reports"] = body
        result = tasks.play.enqueue("reports")
        run_due()
        assert result.progress.done == 5

    def test_a_group_is_stored_in_parts_within_the_transaction_of_the_test(self):
        flow = map_(tasks.echo, range(5), chunk=1).then(tasks.echo.si("end")).enqueue(commit_every=2)
        assert [attempt.outcome for attempt in run_due()] == ["succeeded"] * 6
        assert flow.state == "succeeded"
        with transaction.atomic(), self.assertRaisesMessage(InvalidFlow, "outside of any other"):
            chain(tasks.nothing.s()).enqueue(commit_every=2)

    def test_a_flow_is_cancelled_by_the_next_run(self):
        flow = chain(tasks.nothing.s(), tasks.nothing.s()).enqueue()
        assert flow.cancel()
        assert run_due() == []
        assert flow.state == "cancelled"

    def test_run_workers_refuses_and_the_test_goes_on(self):
        with self.assertRaisesMessage(CommandError, "delayedq.testing.run_due()"):
            call_command("run_workers", drain=True)
        self.assert_it_runs()

    async def test_in_an_async_test(self):
        await tasks.amark.aenqueue("a")
        (attempt,) = await sync_to_async(run_due)()
        assert attempt.outcome == "succeeded"
        assert await Mark.objects.acount() == 1
        assert not await Message.objects.aexists()
