from django.apps import AppConfig


class FlightsConfig(AppConfig):
    name = "example_project.flights"
    default_auto_field = "django.db.models.BigAutoField"
