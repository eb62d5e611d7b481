"""Those of a worker, with migrations as a later version of delayedq may have them."""

from tests.worker_settings import *  # noqa: F403

MIGRATION_MODULES = {"delayedq": "tests.upgrades.later"}
