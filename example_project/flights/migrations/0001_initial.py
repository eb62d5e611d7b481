# ruff: noqa: RUF012

import django.core.validators
import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="Flight",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "carrier",
                    models.CharField(
                        max_length=2,
                        validators=[
                            django.core.validators.RegexValidator(
                                "^[A-Z0-9]{2}\\Z", "Two capital letters or digits, such as UA or B6."
                            )
                        ],
                        verbose_name="airline",
                    ),
                ),
                ("number", models.PositiveIntegerField()),
                (
                    "day",
                    models.DateField(
                        db_index=True, editable=False, help_text="Of the scheduled departure, in New York."
                    ),
                ),
                (
                    "origin",
                    models.CharField(
                        max_length=3,
                        validators=[
                            django.core.validators.RegexValidator("^[A-Z]{3}\\Z", "Three capital letters, such as EWR.")
                        ],
                        verbose_name="from",
                    ),
                ),
                (
                    "destination",
                    models.CharField(
                        max_length=3,
                        validators=[
                            django.core.validators.RegexValidator("^[A-Z]{3}\\Z", "Three capital letters, such as EWR.")
                        ],
                        verbose_name="to",
                    ),
                ),
                ("scheduled_departure", models.DateTimeField()),
                (
                    "departure",
                    models.DateTimeField(
                        blank=True, help_text="Expected, or actual; empty while not announced.", null=True
                    ),
                ),
                ("cancelled", models.BooleanField(default=False)),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(
                        fields=("carrier", "number", "day", "origin"),
                        name="flights_one_departure",
                        violation_error_message="This flight is on the board already.",
                    )
                ],
            },
        ),
        migrations.CreateModel(
            name="Delivery",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("due_at", models.DateTimeField()),
                ("delivered_at", models.DateTimeField()),
                (
                    "flight",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE, related_name="deliveries", to="flights.flight"
                    ),
                ),
            ],
            options={
                "verbose_name_plural": "deliveries",
            },
        ),
    ]
