import os
import warnings

from django.apps import AppConfig


class TestsConfig(AppConfig):
    name = "tests.app"
    label = "tests_app"

    def ready(self):
        from tests.app import chores, once, stepping  # noqa: F401  tasks outside of tasks.py are imported here

        if "NEW_VERSION" in os.environ:
            from tests.app import later  # noqa: F401

        if "DECIDING" in os.environ:
            from tests.app import deciding  # noqa: F401

        if "SOAKED" in os.environ:
            from tests.app import soaked

            soaked.watch_claims()

        if "QUERY_AT_START" in os.environ:
            with warnings.catch_warnings(action="ignore"):
                self.get_model("Mark").objects.exists()
