"""The pages of the desk, to be mounted in a site: `path("desk/", include("delayedq.desk.urls"))`."""

from __future__ import annotations

from django.urls import path

from delayedq.desk import views

app_name = "delayedq_desk"
urlpatterns = [
    path("", views.mine, name="mine"),
    path("next/", views.take_next, name="next"),
    path("team/", views.team, name="team"),
    path("figures/", views.figures, name="figures"),
    path("<int:pk>/", views.one, name="item"),
    path("<int:pk>/<slug:verb>/", views.act, name="act"),
]
