from django.conf import settings
from django.db import migrations, models

import delayedq.desk.models


class Migration(migrations.Migration):

    dependencies = [
        ('delayedq_desk', '0006_attachments'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    # The column first: its lock is the strongest. Who waits for a stronger lock beside readers may be in a deadlock.
    operations = [
        migrations.AddField(
            model_name='item',
            name='escalated_from',
            field=models.CharField(blank=True, help_text='The queue of its message, which has stayed there.', max_length=200, null=True),
        ),
        migrations.AlterField(
            model_name='item',
            name='holder',
            field=models.ForeignKey(blank=True, null=True, on_delete=delayedq.desk.models.give_back, related_name='+', to=settings.AUTH_USER_MODEL),
        ),
        migrations.AddIndex(
            model_name='item',
            index=models.Index(fields=['state', 'queue', '-priority', 'due_or_last', 'id'], name='delayedq_desk_list'),
        ),
        migrations.AddIndex(
            model_name='item',
            index=models.Index(fields=['is_open', 'queue', 'opened_at', 'state'], name='delayedq_desk_since'),
        ),
        migrations.AddIndex(
            model_name='item',
            index=models.Index(fields=['holder', 'state', 'until', 'queue', 'opened_at'], name='delayedq_desk_held'),
        ),
        migrations.RemoveIndex(
            model_name='item',
            name='delayedq_desk_holder',
        ),
        migrations.RemoveIndex(
            model_name='item',
            name='delayedq_desk_state',
        ),
        migrations.RemoveIndex(
            model_name='item',
            name='delayedq_desk_opened',
        ),
    ]
