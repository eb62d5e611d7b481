"""An upgrade under load, and one step back. Prints as JSON what the judge of `torture` finds, and what each fleet ran.

    python -m tests.upgrades.rolling FOLDER

The next version is a copy of the package in FOLDER, with another column of the live table, which its tasks write, an
index of it, and their migrations (`later`). One fleet is of the version before all the time; the other is replaced by
one of the next version, and that by one of the version before.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import django
from django.core.management import call_command

ROOT = Path(__file__).parents[2]
#: Messages a second; and how many attempts each fleet begins before the next step.
RATE, ENOUGH = 60, 50
PATIENCE = 100.0
#: What the next version has in addition: the file, what stands there, and what is inserted before it.
MORE = [
    (
        "delayedq/models/message.py",
        "    errors = models.TextField",
        "    of_the_next_version = models.CharField(max_length=20, null=True)\n",
    ),
    (
        "delayedq/torture/tasks.py",
        "        time.sleep(nap)",
        """\
        from delayedq.models import Message
        rows = Message.objects.filter(pk=current_message().id)
        write("next", rows.update(of_the_next_version="ran"))
""",
    ),
]


def copy_of_the_next_version(folder):
    """The folder in which Python finds it."""
    home = folder / "next"
    shutil.copytree(ROOT / "delayedq", home / "delayedq", ignore=shutil.ignore_patterns("__pycache__"))
    for migration in (ROOT / "tests" / "upgrades" / "later").glob("000[2-9]_*.py"):
        shutil.copy(migration, home / "delayedq" / "migrations")
    for name, there, more in MORE:
        file = home / name
        text = file.read_text()
        assert there in text
        file.write_text(text.replace(there, more + there, 1))
    return home


def command(home, *words):
    """Of the version in this folder."""
    return ["env", "-C", str(home), f"PYTHONPATH={home}:{ROOT}", sys.executable, *words]


def migrate(home, *target):
    words = command(home, "-m", "django", "migrate", "delayedq", *target)
    subprocess.run(words, check=True, stdout=sys.stderr)


def replace(fleet, home):
    """End it, and start it anew as the version in this folder."""
    fleet.end()
    fleet._command = command(home, "-m", __spec__.name, "fleet", "1")
    fleet.start()


def run_on(scene, step, audit, ran):
    """Until each fleet has begun enough attempts in this step: how many is added to `ran`."""
    from delayedq.torture.audit import read

    since, until = time.monotonic_ns(), time.monotonic() + PATIENCE
    while True:
        pids = [set(one.children()) for one in scene.fleets]
        began = [event.pid for event in read(audit) if event.what == "began" and event.at > since]
        ran[step] = [sum(pid in own for pid in began) for own in pids]
        if min(ran[step]) >= ENOUGH:
            return
        assert time.monotonic() < until, ran
        time.sleep(0.2)


def disturbed(name, disturb, audit, rate):
    """Torture with a producer and fleets of one process each, of this program; its report, and what did not hold."""
    from delayedq.store import default_store
    from delayedq.torture import run
    from delayedq.torture.processes import Process

    run.PRODUCERS = run.PROCESSES = 1
    audit.mkdir()

    class Alone(run.Torture):
        def _start(self, role, *words):
            return Process(command(ROOT, "-m", __spec__.name, role, *words), self._log)

    plan = run.Plan("default", 1, 1.0, rate, {name: disturb})
    with Alone(default_store(), plan, audit) as running:
        report = running.run()
        running.clean()
    return report, [f"{one.invariant}: {one.text}" for one in report.violations]


def upgrade(folder):
    from delayedq.torture.audit import read

    home, audit, ran = copy_of_the_next_version(folder), folder / "audit", {}

    def roll(scene):
        _, other = scene.fleets
        run_on(scene, "before", audit, ran)
        migrate(home)
        run_on(scene, "migrated", audit, ran)
        replace(other, home)
        run_on(scene, "side by side", audit, ran)
        replace(other, ROOT)
        migrate(home, "0001")
        run_on(scene, "back", audit, ran)

    _, told = disturbed("upgrade", roll, audit, RATE)
    wrote = sum(event.about[0] for event in read(audit) if event.what == "next")
    print(json.dumps({"violations": told, "ran": ran, "wrote": wrote}))  # noqa: T201


def fleet(number):
    from delayedq.torture import tasks  # registers them

    words = ["--queues", tasks.QUEUE, "--name", f"fleet-{number}", "--processes", "1", "--threads", "4"]
    call_command("run_workers", *words, "--lease", "3", "--shutdown-timeout", "5")


def produce(name, seed, rate):
    """None that kills its process, for whose retries the run would wait."""
    from delayedq.torture import producer

    producer.POISON_EVERY = 10**9
    producer.Producer("default", name, seed, int(rate)).run()


if __name__ == "__main__":
    django.setup()
    match sys.argv[1:]:
        case ["fleet", number]:
            fleet(number)
        case ["producer", *words]:
            produce(*words)
        case [folder]:
            upgrade(Path(folder))
