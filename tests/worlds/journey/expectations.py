"""What `assert` is in tests: it also holds under `python -O`, as these commands must."""

from django.core.management.base import CommandError


def expect(found, expected, of=""):
    if found != expected:
        raise CommandError(f"{of} {found!r}, not {expected!r}".strip())
