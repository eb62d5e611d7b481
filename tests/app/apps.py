from django.apps import AppConfig


class TestsConfig(AppConfig):
    name = "tests.app"
    label = "tests_app"

    def ready(self):
        from tests.app import chores  # noqa: F401  tasks outside of tasks.py are imported here
