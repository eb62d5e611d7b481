"""A command that says when migrations are pending, and that goes on where this can't be asked."""

from __future__ import annotations

from contextlib import suppress

from django.db import DEFAULT_DB_ALIAS, Error

from delayedq.management.backends import ANSWERED
from delayedq.management.configured import ConfiguredCommand
from delayedq.store.connecting import use_worker_connections
from delayedq.worker.silence import answered


class MigratedCommand(ConfiguredCommand):
    """The notice goes to stderr: what programs read on stdout, as of --json and `metrics`, stays as it is."""

    requires_migrations_checks = True

    def check_migrations(self) -> None:
        """Of a database that answers, to a user who may read django_migrations, which workers need not."""
        stdout, self.stdout = self.stdout, self.stderr
        try:
            use_worker_connections()
            with suppress(Error), answered("which migrations were applied", DEFAULT_DB_ALIAS, ANSWERED):
                super().check_migrations()
        finally:
            self.stdout = stdout
