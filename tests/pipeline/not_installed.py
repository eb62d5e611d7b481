"""The settings of a process in a project that has not installed the pipeline."""

from tests.worker_settings import *  # noqa: F403
from tests.worker_settings import INSTALLED_APPS

INSTALLED_APPS = [name for name in INSTALLED_APPS if name != "delayedq.pipeline"]
