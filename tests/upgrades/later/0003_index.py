from django.db.models import Index

from delayedq.store.online import AddIndexOnline, OnlineMigration


class Migration(OnlineMigration):
    atomic = False
    dependencies = (("delayedq", "0002_column"),)
    operations = (AddIndexOnline("message", Index(fields=["of_the_next_version", "id"], name="delayedq_next")),)
