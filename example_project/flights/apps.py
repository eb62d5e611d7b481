from django.apps import AppConfig


class FlightsConfig(AppConfig):
    name = "example_project.flights"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from example_project.flights import closing, refunds  # noqa: F401  their tasks are registered by that
