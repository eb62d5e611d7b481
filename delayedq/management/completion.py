"""`manage.py delayedq completion`: a function of bash that completes subcommands, options and names.

The shell starts this command again with the line so far, so the names of queues, tasks, workers and schedules are those
of the project.
"""

from __future__ import annotations

import os
import shlex
from argparse import PARSER, SUPPRESS
from typing import TYPE_CHECKING, Any

from django.db import Error

from delayedq.conf import get_settings
from delayedq.management.backends import all_stores, backends
from delayedq.management.queues import known_queues
from delayedq.models import CronSchedule, Worker
from delayedq.tasks import registered

if TYPE_CHECKING:
    from argparse import Action, ArgumentParser
    from collections.abc import Callable, Iterable

    from django.core.management.base import OutputWrapper

BASH = """\
_delayedq() {
    local i
    for ((i = 1; i < COMP_CWORD; i++)); do
        if [[ ${COMP_WORDS[i]} == delayedq ]]; then
            mapfile -t COMPREPLY < <(DELAYEDQ_WORDBREAKS=$COMP_WORDBREAKS \\
                "${COMP_WORDS[@]:0:i+1}" completion --of="${COMP_LINE:0:COMP_POINT}" 2>/dev/null)
            return
        fi
    done
}
complete -o bashdefault -o default -F _delayedq manage.py ./manage.py python python3
"""
#: At most so many names are offered.
MOST = 1_000


def add_completion(parser: ArgumentParser) -> None:
    parser.add_argument("--of", metavar="LINE", help=SUPPRESS)


def run_completion(parser: ArgumentParser, out: OutputWrapper, line: str | None) -> None:
    """Print the function; or, for that, what may stand at the end of a line. `parser`: of `manage.py delayedq`."""
    if line is None:
        out.write(BASH)
        return
    words = _words(line)
    # bash replaces what follows the last of these characters; what is before stays.
    breaks = os.environ.get("DELAYEDQ_WORDBREAKS", "")
    stays = max((words[-1].rfind(one) for one in breaks), default=-1) + 1
    for one in sorted(candidates(parser, words)):
        out.write(shlex.quote(one) if shlex.quote(one) != one else one[stays:])


def _words(line: str) -> list[str]:
    """Those that follow the name of this command, the last one perhaps not complete."""
    for end in ("", "'", '"'):
        try:
            words = shlex.split(line + end)
        except ValueError:  # a quotation that is open
            continue
        if not end and line[-1:].isspace():
            words.append("")
        return words[words.index("delayedq") + 1 :] or [""] if "delayedq" in words else [""]
    return [""]


def candidates(parser: ArgumentParser, words: list[str]) -> set[str]:
    """What may stand for the last of these words of `manage.py delayedq`, and begins as it does."""
    *before, given = words
    for word in before:
        parser = _subparsers(parser).get(word, parser)
    options = parser._option_string_actions  # noqa: SLF001  argparse has no public way to ask; Django does so, too
    if before and (option := options.get(before[-1])) is not None and option.nargs != 0:
        found = _values(option)
    elif given.startswith("-"):
        found = {name for name in options if name.startswith("--")}
    else:
        positional = [action for action in parser._actions if not action.option_strings]  # noqa: SLF001
        found = set(_subparsers(parser)).union(*map(_values, positional))
    return {one for one in found if one.startswith(given)}


def _subparsers(parser: ArgumentParser) -> dict[str, ArgumentParser]:
    nested: list[Any] = [action.choices for action in parser._actions if action.nargs == PARSER]  # noqa: SLF001
    return dict(nested[0]) if nested else {}


def _values(action: Action) -> set[str]:
    """What an option or a positional argument may be, as far as that is known."""
    if action.choices is not None:
        return {str(one) for one in action.choices}
    try:
        return {*_NAMES.get(action.dest, tuple)()}
    except Error:  # the database does not answer
        return set()


def _queues() -> Iterable[str]:
    return known_queues([""], backends())


def _workers() -> Iterable[str]:
    return _column(Worker)


def _schedules() -> Iterable[str]:
    return _column(CronSchedule)


def _column(model: type[Worker | CronSchedule]) -> set[str]:
    names = [model.objects.using(one.alias).values_list("name", flat=True)[:MOST] for one in all_stores()]
    return {name for some in names for name in some}


#: The names of what exists, by the name of an argument.
_NAMES: dict[str, Callable[[], Iterable[str]]] = {
    "queue": _queues,
    "task": lambda: registered,
    "scope": lambda: {*_queues(), *registered, *get_settings().LIMITS},
    "worker": _workers,
    "name": _schedules,
    "names": _schedules,
    "backend": lambda: [one.alias for one in backends()],
}
