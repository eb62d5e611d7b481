"""Those of a project whose backend names the queues that it has."""

from tests.worker_settings import *  # noqa: F403

INSTALLED_APPS = ["delayedq"]
MIDDLEWARE = []
ROOT_URLCONF, urlpatterns = __name__, []
TASKS["default"] = {**TASKS["default"], "QUEUES": ["mail"]}  # noqa: F405
