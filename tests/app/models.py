from django.db import models


class Mark(models.Model):
    """What a task did, for a test to count: its table needs no migration."""

    name = models.CharField(max_length=200)
    value = models.CharField(max_length=200, default="")

    def __str__(self):
        return f"{self.name}={self.value}"
