from django.apps import AppConfig


class TestsConfig(AppConfig):
    name = "tests.app"
    label = "tests_app"
