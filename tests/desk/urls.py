from django.contrib import admin
from django.urls import include, path

urlpatterns = [path("admin/", admin.site.urls), path("desk/", include("delayedq.desk.urls"))]
