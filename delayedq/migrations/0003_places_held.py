from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("delayedq", "0002_expiring_results")]

    operations = [
        migrations.AddField(
            model_name="channelmessage",
            name="held_until",
            field=models.DateTimeField(blank=True, help_text="It is taken at least until then.", null=True),
        ),
    ]
