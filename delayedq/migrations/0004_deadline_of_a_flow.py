from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("delayedq", "0003_places_held")]

    operations = [
        migrations.AddField(
            model_name="flow",
            name="deadline",
            field=models.DurationField(blank=True, help_text="Counts from its start, and from each retry.", null=True),
        ),
    ]
