"""What the traveller has sent, and what came of it."""

from django.conf import settings
from django.contrib.auth.models import AbstractUser
from django.db import models


class Sent(models.Model):
    """One message, and what must become of it. `number` is the first argument of its task."""

    number = models.IntegerField(primary_key=True)
    kind = models.CharField(max_length=20)
    outcome = models.CharField(max_length=10, default="succeeded")
    effects = models.IntegerField(default=1)
    attempts = models.IntegerField(default=1)


class Effect(models.Model):
    """What a task did, from `began` to `ended` by the clock of the host. It has a text in all of Unicode."""

    number = models.IntegerField()
    text = models.CharField(max_length=40, default="Zürich, Ærø, 東京 🧭")
    began = models.FloatField()
    ended = models.FloatField()


if settings.AUTH_USER_MODEL == "journey.Person":

    class Person(AbstractUser):
        """The users of a world that has its own."""
