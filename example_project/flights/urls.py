from datetime import date

from django.urls import path, register_converter

from delayedq.views import status
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
    path("reports/", views.report_all, name="report_all"),
    path("reports/<str:token>/", views.progress, name="progress"),
    path("status/<str:token>/", status, name="status"),
    path("add/", views.add, name="add"),
    path("<int:pk>/delay/", views.delay, name="delay"),
    path("<int:pk>/cancel/", views.cancel, name="cancel"),
]
