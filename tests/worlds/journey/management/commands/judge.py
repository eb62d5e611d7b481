"""Look at each message that was sent: it has one outcome, its effects, and nothing is left of it."""

import json
import platform
import re
from collections import Counter
from itertools import accumulate

from django import get_version
from django.core.management.base import BaseCommand, CommandError
from django.db import connection
from journey import tasks
from journey.models import Effect, Sent

from delayedq.models import CronTick, FinishedMessage, Message


def versions():
    """On what this runs; of SQLite, the library."""
    asked = "SELECT sqlite_version()" if connection.vendor == "sqlite" else "SELECT version()"
    with connection.cursor() as cursor:
        cursor.execute(asked)
        (database,) = cursor.fetchone()
    number = re.search(r"\d[\d.]*", database)[0]
    return {
        "python": f"Python {platform.python_version()}",
        "django": f"Django {get_version()}",
        "database": f"{connection.display_name} {number}",
    }


TICK = tasks.tick.module_path


class Command(BaseCommand):
    def handle(self, **options):
        wrong = [*self.messages(), *self.ticks(), *self.at_once()]
        if wrong:
            raise CommandError("\n".join(wrong))
        found = Counter(Sent.objects.values_list("kind", flat=True))
        self.stdout.write(f"judged {dict(found)} and {Effect.objects.filter(number=0).count()} ticks on")
        self.stdout.write(json.dumps(versions()))

    def messages(self):
        ended, live, effects = {}, Counter(), Counter(Effect.objects.values_list("number", flat=True))
        for one in FinishedMessage.objects.exclude(kind=TICK):
            ended.setdefault(one.args[0], []).append((one.outcome, one.attempts))
        live.update(one.args[0] for one in Message.objects.exclude(kind=TICK))
        sent = {one.number: one for one in Sent.objects.all()}
        for number, one in sent.items():
            expected = ([(one.outcome, one.attempts)] if one.outcome else [], one.effects, int(not one.outcome))
            found = (ended.get(number, []), effects[number], live[number])
            if found != expected:
                yield f"{one.kind} {number} has the ends, effects and live rows {found}, not {expected}"
        for number in {*ended, *live, *effects} - {*sent, 0}:
            yield f"{number} was never sent, or rolled back: {ended.get(number)}, {live[number]}, {effects[number]}"

    def ticks(self):
        """Those that were placed have run once each, but the next ones."""
        ended = FinishedMessage.objects.filter(kind=TICK)
        placed = {*CronTick.objects.exclude(message_id=None).values_list("message_id", flat=True)}
        done, waiting = {one.pk for one in ended}, {*Message.objects.filter(kind=TICK).values_list("pk", flat=True)}
        if {one.outcome for one in ended} != {"succeeded"} or len(done) != Effect.objects.filter(number=0).count():
            yield f"the ticks {[(one.pk, one.outcome) for one in ended]} do not have an effect each"
        if placed - done - waiting or done & waiting:
            yield f"of the ticks {placed}, {done} have ended and {waiting} wait"

    def at_once(self):
        """How many of the limited task ran together in each town, by what they noted."""
        numbers = Sent.objects.filter(kind="limited").values_list("number", flat=True)
        towns = {}
        for one in Effect.objects.filter(number__in=list(numbers)):
            towns.setdefault(one.number % tasks.TOWNS, []).extend([(one.began, 1), (one.ended, -1)])
        for moments in towns.values():
            running = accumulate(change for _, change in sorted(moments))
            if (most := max(running)) > tasks.PLACES:
                yield f"{most} messages of one town ran at once, not {tasks.PLACES}"
