"""Modules of the project's apps that define tasks and that nothing imports: no worker knows their tasks."""

from __future__ import annotations

import os
import re
import sys
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from django.apps import apps

if TYPE_CHECKING:
    from collections.abc import Iterator

#: What decorates a task, and what it is imported from.
_DECORATES = re.compile(r"^@(?:\w+\.)*(?:shared_)?task\b", re.MULTILINE)
_IMPORTS = re.compile(r"^(?:from|import) (?:delayedq|django\.tasks)\b", re.MULTILINE)
#: Libraries are not looked at, nor are the tests of an app; and of all apps at most so many files.
_LIBRARIES = {"site-packages", "dist-packages"}
_TESTS = {"tests", "test", "testing", "migrations"}
MOST_FILES = 5_000


def unimported_modules() -> list[str]:
    """The names of modules that look as if they define tasks, by their text, and that this process has not imported."""
    found = {name for name, path in islice(_sources(), MOST_FILES) if name not in sys.modules and _defines_tasks(path)}
    return sorted(found)


def _sources() -> Iterator[tuple[str, Path]]:
    """The modules of the apps, but for those of libraries, of delayedq and of tests."""
    for app in apps.get_app_configs():
        root = Path(app.path)
        parts = app.name.split(".")
        if parts[0] == "delayedq" or _TESTS.intersection(parts) or _LIBRARIES.intersection(root.parts):
            continue
        for folder, folders, files in os.walk(root):
            here = Path(folder)
            folders[:] = [one for one in folders if one not in _TESTS and (here / one / "__init__.py").exists()]
            package = ".".join([app.name, *here.relative_to(root).parts])
            yield from (
                (f"{package}.{name[:-3]}", here / name)
                for name in files
                if name.endswith(".py") and name != "__init__.py" and not name.startswith("test")
            )


def _defines_tasks(path: Path) -> bool:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return False
    return bool(_DECORATES.search(text) and _IMPORTS.search(text))
