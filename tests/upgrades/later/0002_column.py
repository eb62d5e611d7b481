from django.db import models
from django.db.migrations import AddField

from delayedq.store.online import OnlineMigration


class Migration(OnlineMigration):
    dependencies = (("delayedq", "0001_initial"),)
    operations = (AddField("message", "of_the_next_version", models.CharField(max_length=20, null=True)),)
