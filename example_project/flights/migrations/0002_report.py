# ruff: noqa: RUF012

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("flights", "0001_initial"),
    ]

    operations = [
        migrations.CreateModel(
            name="Report",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("day", models.DateField(unique=True)),
                ("flights", models.PositiveIntegerField()),
                ("cancelled", models.PositiveIntegerField()),
                ("delivered", models.PositiveIntegerField(help_text="Reminders.")),
                ("late", models.PositiveIntegerField(help_text="Those of them that were over a minute late.")),
            ],
        ),
    ]
