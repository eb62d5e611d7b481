from datetime import date

from django.urls import path, register_converter

from example_project.flights import views


class DateConverter:
    regex = r"\d{4}-\d{2}-\d{2}"
    to_python = staticmethod(date.fromisoformat)
    to_url = staticmethod(str)


register_converter(DateConverter, "date")

app_name = "flights"
urlpatterns = [
    path("", views.latest, name="latest"),
    path("<date:day>/", views.board, name="board"),
    path("add/", views.add, name="add"),
    path("<int:pk>/delay/", views.delay, name="delay"),
    path("<int:pk>/cancel/", views.cancel, name="cancel"),
]
