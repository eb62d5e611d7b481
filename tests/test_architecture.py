"""What the design asks of the code as a whole: sizes, names, clocks, SQL, and a reference that leaves nothing out.

Each rule is one test, which lists all that breaks it as `file:line what`.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import re
import subprocess
from dataclasses import fields
from functools import cache
from pathlib import Path
from statistics import median

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "delayedq"
FILES = sorted(PACKAGE.rglob("*.py"))
FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef

TOP_LEVEL = {"manage.py", "delayedq", "example_project", "tests", "pyproject.toml", "README.md"} | {
    "LICENSE", "CHANGELOG.md", "docs"
}  # fmt: skip
#: Each is a folder.
FEATURES = ("cron", "flows", "limits", "steps")

FORBIDDEN = {"job", "item", "manager", "util", "helper", "common"}
CLOCK = re.compile(r"\b(now|utcnow|today|time|monotonic|localtime|gmtime|perf_counter)\(\)")
SQL = re.compile(
    r"\s*(SELECT\s.+\sFROM|WITH\s.+\sAS|INSERT\sINTO|UPDATE\s.+\sSET|DELETE\sFROM|CREATE|ALTER|PRAGMA)\b", re.DOTALL
)
RAW = {"cursor", "raw", "extra", "RawSQL"}
NOT_IN_SPARK_CONNECT = {"sparkContext", "rdd", "_sc", "_jvm", "_jsc", "_jdf", "_jsparkSession"}


@cache
def nodes(path):
    return list(ast.walk(ast.parse(path.read_text())))


def functions(path):
    return [node for node in nodes(path) if isinstance(node, FUNCTIONS)]


def length(function):
    return function.end_lineno - function.lineno + 1


def place(path, line):
    return f"{path.relative_to(ROOT)}:{line}"


def none_of(offenders):
    """Unlike a comparison of lists, it is shown in full."""
    assert not offenders, "\n".join(offenders)


def test_the_rules_see_the_code():
    """Were it moved, every rule would hold of nothing."""
    assert len(FILES) > 100
    assert sum(len(functions(path)) for path in FILES) > 1000
    assert [path for path in FILES if may_hold_sql(path)]


def test_git_ignores_no_source_file():
    """An ignored module works where it was written, and is missing in every clone. Outside of a clone none is found."""
    asked = ["git", "ls-files", "--others", "--ignored", "--exclude-standard", "--", "delayedq/*.py", "tests/*.py"]
    found = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=False)

    none_of(found.stdout.split())


def test_the_top_level_has_what_the_user_fixed():
    """A file that was left there by mistake would be published. Outside of a clone nothing is found."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False).stdout
    found = {path.partition("/")[0] for path in listed.splitlines()}

    none_of(sorted(name for name in found - TOP_LEVEL if not name.startswith(".")))


# Sizes


def test_files_and_functions_are_short():
    """A file has one subject, and at most 800 lines, also one of tests; a function 50, and half of them at most 8.

    A migration is as long as `makemigrations` writes it.
    """
    paths = [path for path in (*FILES, *(ROOT / "tests").rglob("*.py")) if path.parent.name != "migrations"]
    files = [(place(path, 1), len(path.read_text().splitlines())) for path in paths]
    each = [(f"{place(path, one.lineno)} {one.name}", length(one)) for path in FILES for one in functions(path)]

    long = [one for one in files if one[1] > 800] + [one for one in each if one[1] > 50]
    none_of([f"{name}: {lines} lines" for name, lines in long])
    assert median(lines for _, lines in each) <= 8


# Names


def defined_names(path):
    """What the file names itself: modules, classes, functions, arguments, variables and attributes."""
    yield 1, path.stem
    for node in nodes(path):
        if isinstance(node, ast.ClassDef | FUNCTIONS):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr


def words(name):
    """Those of a_name or AName, in the singular."""
    return {word.lower().removesuffix("s") for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)}


def is_of_the_vocabulary(path, name):
    """The desk has items, which a person decides; nothing else is called so."""
    forbidden = FORBIDDEN - {"item"} if path.is_relative_to(PACKAGE / "desk") else FORBIDDEN
    return not words(name) & forbidden and not name.startswith(("handle_", "_handle_"))


def test_names_are_of_the_vocabulary():
    named = [(path, line, name) for path in FILES for line, name in defined_names(path)]

    none_of([f"{place(path, line)} {name}" for path, line, name in named if not is_of_the_vocabulary(path, name)])


# Documentation


def public_functions(owner):
    """What a caller finds on a class of ours, also inherited: functions and properties."""
    for name in dir(owner):
        found = inspect.getattr_static(owner, name)
        function = getattr(found, "fget", None) or getattr(found, "__func__", found)
        if not name.startswith("_") and inspect.isfunction(function) and function.__module__.startswith("delayedq"):
            yield f"{owner.__qualname__}.{name}", function


def test_everything_that_a_project_calls_has_a_docstring():
    import delayedq
    from delayedq import models, queue, schedules, testing
    from delayedq.cron.service import CronMessage, CronService

    named = [getattr(home, name) for home in (delayedq, queue, testing) for name in home.__all__]
    classes = [one for one in named if inspect.isclass(one)] + [CronMessage, CronService]
    classes += [type(models.Message.objects.all()), type(models.FinishedMessage.objects.all())]
    public = {one.__qualname__: one for one in [*named, *classes] if hasattr(one, "__qualname__")}
    functions = inspect.getmembers(schedules, inspect.isfunction)
    public |= {name: one for name, one in functions if one.__module__ == "delayedq.schedules" and name[0] != "_"}
    public |= {name: function for one in classes for name, function in public_functions(one)}

    assert len(public) > 120
    none_of([name for name, one in public.items() if not one.__doc__])


# Boundaries


def test_the_core_and_the_rules_of_features_read_no_clock():
    core = [path for path in FILES if path.is_relative_to(PACKAGE / "core") or is_pure(path)]
    lines = [(path, n, line) for path in core for n, line in enumerate(path.read_text().splitlines(), 1)]

    assert core
    none_of([f"{place(path, n)} {line.strip()}" for path, n, line in lines if CLOCK.search(line)])


def is_of_a_feature(path):
    return path.parent.parent == PACKAGE and path.parent.name in FEATURES


def is_pure(path):
    """The rules of a feature."""
    return is_of_a_feature(path) and path.stem in {"rules", "rates", "expressions", "ticks"}


def may_hold_sql(path):
    """Executors can't import the store: the statements of the pipeline stand beside what reads and writes with them.

    Those of a feature stand beside what the store asks of it; its pages and commands have none. What a task of somebody
    does to its session is no statement of ours.
    """
    if is_of_a_feature(path):
        return not is_pure(path) and not path.stem.startswith(("admin", "command"))
    if path.is_relative_to(PACKAGE / "store") or path.parent.name == "migrations":
        return True
    if path == PACKAGE / "torture" / "poisons.py":
        return True
    return path.parent == PACKAGE / "pipeline" / "spark"


def texts(path):
    """The strings of a file, but for docstrings and other strings that stand alone."""
    alone = {id(node.value) for node in nodes(path) if isinstance(node, ast.Expr)}
    strings = [node for node in nodes(path) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return [(node.lineno, node.value) for node in strings if id(node) not in alone]


def calls(path):
    called = [(node.lineno, node.func) for node in nodes(path) if isinstance(node, ast.Call)]
    return [(line, getattr(name, "attr", getattr(name, "id", ""))) for line, name in called]


def test_raw_sql_is_only_in_the_store():
    others = [path for path in FILES if not may_hold_sql(path)]

    statements = [f"{place(path, line)} {text}" for path in others for line, text in texts(path) if SQL.match(text)]
    none_of(
        statements + [f"{place(path, line)} {name}()" for path in others for line, name in calls(path) if name in RAW]
    )


#: Statements of PostgreSQL that are fused with what limits do: they hold the places of what they end or release.
FUSED = {"postgresql/sql.py", "postgresql/operator_sql.py"}

TABLE_OF_A_FEATURE = re.compile(r"delayedq_(channel|limit|flow|recordedstep|cron|expiring)\w*")


def test_the_store_knows_no_feature_by_name():
    """`store.feature` is how they take part. Values that pass through (a rule, a stored priority) may be imported."""
    store = [path for path in FILES if path.is_relative_to(PACKAGE / "store")]
    imported = [
        f"{place(path, node.lineno)} {node.module}"
        for path in store
        for node in nodes(path)
        if isinstance(node, ast.ImportFrom)
        and re.fullmatch(rf"delayedq\.({'|'.join(FEATURES)})(\.(?!rules).*)?", node.module or "")
    ]
    tables = [
        f"{place(path, line)} {found[0]}"
        for path in store
        if str(path.relative_to(PACKAGE / "store")) not in FUSED
        for line, text in texts(path)
        if (found := TABLE_OF_A_FEATURE.search(text))
    ]

    assert store
    none_of(imported + tables)


#: What may name a database, besides `sql/` and its own folder: it makes the store, or is about something that one of
#: them has and the others have not.
NAMES_A_DATABASE = {
    "checks.py": "SQLite tells its version without a connection",
    "desk/rounds.py": "only MySQL has no partial index of closed items",
    "flows/ending.py": "one statement stores a step on PostgreSQL",
    "flows/members_sql.py": "its statements, by database",
    "limits/channels.py": "makes the channels",
    "management/commands/run_workers.py": "a database in memory is no other process's",
    "operations/counting.py": "only PostgreSQL's planner tells numbers",
    "operations/doctor.py": "only PostgreSQL has dead rows and their vacuum",
    "pipeline/address.py": "makes the address for Spark",
    "pytest_plugin.py": "a database in memory is no other process's",
    "store/__init__.py": "makes the store",
    "store/claim_plan.py": "reads their plans",
    "store/connecting.py": "knows their sockets",
    "store/lineage.py": "has no expression for it on MySQL",
    "store/requirements.py": "names their drivers",
    "torture/poisons.py": "does to a session what a task of somebody may do",
    "worker/sessions.py": "knows what a session of PostgreSQL keeps",
}
DATABASES = {"postgresql", "mysql", "sqlite"}


def test_what_differs_by_database_stands_in_one_place():
    def may_name_one(path):
        inside = path.relative_to(PACKAGE)
        if path.parent.name in {"migrations", "sql"} or path.stem in DATABASES or path.parent.name in DATABASES:
            return True
        return inside.parts[:2] == ("pipeline", "spark") or str(inside) in NAMES_A_DATABASE

    named = [(path, line, text) for path in FILES for line, text in texts(path) if text in DATABASES]
    found = {str(path.relative_to(PACKAGE)) for path, _, _ in named}

    none_of([f"{place(path, line)} {text}" for path, line, text in named if not may_name_one(path)])
    none_of([f"{name} names none any more" for name in sorted(NAMES_A_DATABASE.keys() - found)])


def test_who_holds_a_message_is_said_in_one_place():
    """And once in Django's words, beside the model."""
    leases = PACKAGE / "sql" / "leases.py"
    said = [(path, line, text) for path in FILES if path != leases for line, text in texts(path)]

    none_of([place(path, line) for path, line, text in said if "EXISTS" in text and "lockedrenewal" in text])


def test_the_pipeline_asks_spark_for_nothing_that_spark_connect_lacks():
    attributes = [(path, node) for path in FILES for node in nodes(path) if isinstance(node, ast.Attribute)]

    none_of([f"{place(path, a.lineno)} .{a.attr}" for path, a in attributes if a.attr in NOT_IN_SPARK_CONNECT])


# The README and the reference


@pytest.fixture(scope="module")
def readme():
    return (ROOT / "README.md").read_text()


@pytest.fixture(scope="module")
def reference():
    return (ROOT / "docs" / "reference.md").read_text()


def test_the_reference_names_every_flag_of_run_workers(reference):
    from delayedq.management.commands.run_workers import Command

    parser = argparse.ArgumentParser(add_help=False)
    Command().add_arguments(parser)
    flags = [flag for action in parser._actions for flag in action.option_strings]
    assert flags
    assert [flag for flag in flags if f"`{flag}" not in reference] == []


def test_the_reference_names_every_setting(reference):
    from delayedq.conf import Settings

    assert [field.name for field in fields(Settings) if f"`{field.name}" not in reference] == []


def test_the_reference_names_every_option_of_tasks(reference):
    from delayedq.tasks.base import BaseTask
    from delayedq.tasks.scheduling import Changes

    table = reference.split("| Option of `@task` |")[1].split("\n\n")[0]
    known = {field.name for field in fields(BaseTask)} - {"func", "run_after", "channel_name"}
    assert sorted(name for name in known if f"`{name}`" not in table) == []
    (using,) = (line for line in reference.splitlines() if line.startswith("| `t.using("))
    assert [name for name in Changes.__annotations__ if f"{name}=" not in using] == []


def test_the_reference_names_every_command(reference):
    from delayedq.management.commands.delayedq import Command

    (subjects,) = Command().create_parser("manage.py", "delayedq")._subparsers._group_actions
    table = reference.split("\n## Commands\n")[1].split("\n## ")[0]
    assert [name for name in subjects.choices if not re.search(rf"`(manage.py delayedq )?{name}\b", table)] == []


def test_the_reference_names_every_check(reference):
    found = {name for path in FILES for name in re.findall(r"delayedq\.[EW]\d{3}", path.read_text())}
    assert len(found) > 15
    assert sorted(name for name in found if f"`{name}`" not in reference) == []


@pytest.mark.parametrize("command", ["uv run manage.py demo", "uv run --group test pytest"])
def test_the_readme_gives_the_commands_that_work_on_a_fresh_clone(readme, command):
    assert re.search(rf"^\s*(\$ )?{re.escape(command)}(\s+#.*)?$", readme, re.MULTILINE)


@pytest.mark.parametrize("command", ["uv run manage.py demo", "uv run --group test pytest"])
def test_ci_runs_the_commands_of_the_readme_on_a_fresh_clone(command):
    assert re.search(rf"in_a_fresh_clone {re.escape(command)}\n", (ROOT / ".ci" / "run").read_text())


def test_before_a_commit_runs_what_ci_runs_before_the_tests():
    checks = re.findall(r"^uv run --no-sync (?!pytest).+$", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)
    hooks = re.findall(r"^ +entry: (.+)$", (ROOT / ".pre-commit-config.yaml").read_text(), re.MULTILINE)

    assert len(checks) > 5
    assert hooks == checks
