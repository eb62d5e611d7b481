from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('delayedq_desk', '0004_closed'),
    ]

    operations = [
        migrations.AddField(
            model_name='item',
            name='digest',
            field=models.CharField(help_text='Of the arguments which were shown; empty: unknown.', max_length=32, null=True),
        ),
    ]
