import datetime
from typing import Any

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models

import delayedq.desk.models

# Texts compare exactly, and may have any character, whatever the database's own collation is: as in `delayedq`.
COLLATION = "ALTER TABLE delayedq_desk_{} CONVERT TO CHARACTER SET utf8mb4 COLLATE {}"
TABLES_WITH_NAMES = ("item", "deskqueue", "automation", "skill", "comment", "itemchange", "replytemplate", "savedview")


def set_collation(apps: Any, schema_editor: Any) -> None:
    connection = schema_editor.connection
    if connection.vendor == "mysql":
        collation = "utf8mb4_nopad_bin" if connection.mysql_is_mariadb else "utf8mb4_0900_bin"
        for table in TABLES_WITH_NAMES:
            schema_editor.execute(COLLATION.format(table, collation))


class Migration(migrations.Migration):
    initial = True

    dependencies = [
        ('auth', '0012_alter_user_first_name_max_length'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.CreateModel(
            name='Automation',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('kind', models.CharField(help_text='The path of the task.', max_length=200, unique=True, verbose_name='task')),
                ('mode', models.CharField(choices=[('people', 'people'), ('shadow', 'shadow'), ('assisted', 'assisted'), ('reviewed', 'reviewed'), ('automatic', 'automatic')], max_length=10, verbose_name='mode')),
            ],
            options={
                'verbose_name': 'automation',
                'verbose_name_plural': 'automation',
            },
        ),
        migrations.CreateModel(
            name='DeskQueue',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('queue', models.CharField(max_length=200, unique=True, verbose_name='queue')),
                ('capacity', models.PositiveIntegerField(blank=True, help_text='The weight that one may hold at a time.', null=True, verbose_name='capacity')),
                ('escalate_to', models.CharField(blank=True, help_text='Where what is late goes.', max_length=200, verbose_name='escalate to')),
                ('groups', models.ManyToManyField(blank=True, help_text='Who works on it. None: everybody who may.', to='auth.group', verbose_name='groups')),
            ],
            options={
                'verbose_name': 'desk queue',
                'verbose_name_plural': 'desk queues',
            },
        ),
        migrations.CreateModel(
            name='Item',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('message_id', models.BigIntegerField(help_text='The same in the history, when it is done.', unique=True, verbose_name='message')),
                ('generation', models.IntegerField(default=0, help_text='That of the message which was shown.', verbose_name='generation')),
                ('digest', models.CharField(help_text='Of the arguments which were shown; empty: unknown.', max_length=32, null=True)),
                ('queue', models.CharField(max_length=200, verbose_name='queue')),
                ('kind', models.CharField(max_length=200, verbose_name='task')),
                ('key', models.CharField(blank=True, max_length=200, null=True, verbose_name='key')),
                ('priority', models.SmallIntegerField(default=0, verbose_name='priority')),
                ('skill', models.CharField(blank=True, max_length=200, verbose_name='skill')),
                ('weight', models.PositiveSmallIntegerField(default=1, verbose_name='weight')),
                ('state', models.CharField(choices=[('waiting', 'waiting'), ('assigned', 'assigned'), ('postponed', 'postponed'), ('review', 'pending review'), ('rejected', 'rejected back'), ('done', 'done'), ('withdrawn', 'withdrawn')], default='waiting', max_length=10, verbose_name='state')),
                ('is_open', models.BooleanField(default=True, verbose_name='open')),
                ('assigned_at', models.DateTimeField(blank=True, null=True, verbose_name='assigned')),
                ('until', models.DateTimeField(blank=True, help_text='When the assignment or the postponement ends.', null=True, verbose_name='until')),
                ('assignment', models.IntegerField(default=0, help_text='Counts changes of hands: it fences what a page may do.', verbose_name='changes of hands')),
                ('reason', models.TextField(blank=True, help_text='Why a person is needed: what the handler has said.')),
                ('why', models.TextField(blank=True, db_default='', default='', help_text='Why it was postponed or sent back, the last time.')),
                ('opened_at', models.DateTimeField(verbose_name='opened')),
                ('replaced_at', models.DateTimeField(blank=True, help_text='When it was opened anew: its message changed.', null=True, verbose_name='opened anew')),
                ('due_at', models.DateTimeField(blank=True, null=True, verbose_name='due')),
                ('due_or_last', delayedq.desk.models.DueOrLast(default=datetime.datetime(9999, 1, 1, 0, 0, tzinfo=datetime.timezone.utc), editable=False)),
                ('is_clock_paused', models.BooleanField(default=False, help_text='Its due time has moved on by its postponement.', verbose_name='clock paused')),
                ('warned_at', models.DateTimeField(blank=True, null=True, verbose_name='warned')),
                ('escalated_at', models.DateTimeField(blank=True, null=True, verbose_name='escalated')),
                ('escalated_from', models.CharField(blank=True, help_text='The queue of its message, which has stayed there.', max_length=200, null=True, verbose_name='escalated from')),
                ('mode', models.CharField(choices=[('people', 'people'), ('shadow', 'shadow'), ('assisted', 'assisted'), ('reviewed', 'reviewed'), ('automatic', 'automatic')], max_length=10, verbose_name='mode')),
                ('is_blind', models.BooleanField(default=False, help_text='Who decides does not see what the handler has decided.', verbose_name='decided blind')),
                ('proposal', models.TextField(blank=True, help_text='JSON: the decision of the handler.', null=True)),
                ('confidence', models.FloatField(blank=True, null=True, verbose_name='confidence')),
                ('truth', models.TextField(blank=True, help_text='JSON: the right answer, where it was known before.', null=True)),
                ('decision', models.TextField(blank=True, help_text='JSON: what became the result of the message.', null=True)),
                ('decided_at', models.DateTimeField(blank=True, null=True, verbose_name='decided')),
                ('seconds', models.FloatField(blank=True, help_text='From the assignment to the decision.', null=True, verbose_name='seconds')),
                ('agreed', models.BooleanField(help_text='Whether person and handler decided alike; empty: not measured.', null=True, verbose_name='agreed')),
                ('is_automated', models.BooleanField(default=False, help_text='The handler alone has decided.', verbose_name='automated')),
                ('rejections', models.PositiveSmallIntegerField(default=0, help_text='How often a review has sent it back.', verbose_name='sent back')),
                ('closed_at', models.DateTimeField(blank=True, null=True, verbose_name='closed')),
                ('decided_by', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL, verbose_name='decided by')),
                ('holder', models.ForeignKey(blank=True, null=True, on_delete=delayedq.desk.models.give_back, related_name='+', to=settings.AUTH_USER_MODEL, verbose_name='holder')),
                ('reviewed_by', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL, verbose_name='reviewed by')),
            ],
            options={
                'verbose_name': 'desk item',
                'verbose_name_plural': 'desk items',
                'permissions': [('take_item', 'Can take and decide desk items'), ('assign_item', 'Can assign desk items to others'), ('review_item', 'Can review decisions')],
                'default_permissions': ('view',),
            },
        ),
        migrations.CreateModel(
            name='Comment',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('at', models.DateTimeField()),
                ('text', models.TextField(blank=True)),
                ('attachment', models.FileField(blank=True, upload_to=delayedq.desk.models.stored_name)),
                ('by', models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('item', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='comments', to='delayedq_desk.item')),
            ],
            options={
                'default_permissions': (),
            },
        ),
        migrations.CreateModel(
            name='Skill',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.CharField(max_length=200, verbose_name='skill')),
                ('until', models.DateTimeField(blank=True, help_text='When it is dropped; empty: never.', null=True, verbose_name='until')),
                ('user', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to=settings.AUTH_USER_MODEL, verbose_name='user')),
            ],
            options={
                'verbose_name': 'skill',
                'verbose_name_plural': 'skills',
            },
        ),
        migrations.CreateModel(
            name='ItemChange',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('at', models.DateTimeField()),
                ('verb', models.CharField(help_text='As `item_changed` says it.', max_length=10)),
                ('is_by_code', models.BooleanField(default=False, help_text='No user did it, also none who was deleted since.')),
                ('until', models.DateTimeField(help_text='Of a postponement.', null=True)),
                ('is_clock_paused', models.BooleanField(default=False, help_text='Of a postponement: its due time moved with it.')),
                ('why', models.TextField(blank=True, default='')),
                ('by', models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('holder', models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('item', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='changes', to='delayedq_desk.item')),
            ],
            options={
                'default_permissions': (),
            },
        ),
        migrations.CreateModel(
            name='ReplyTemplate',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('kind', models.CharField(help_text='The path of the task.', max_length=200, verbose_name='task')),
                ('field', models.CharField(help_text='The name of a text field of its form.', max_length=200, verbose_name='field')),
                ('name', models.CharField(max_length=200, verbose_name='name')),
                ('text', models.TextField(verbose_name='text')),
            ],
            options={
                'verbose_name': 'reply template',
                'verbose_name_plural': 'reply templates',
            },
        ),
        migrations.CreateModel(
            name='SavedView',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.CharField(max_length=200)),
                ('queue', models.CharField(blank=True, max_length=200)),
                ('only', models.CharField(blank=True, help_text='One of the states that the team desk filters by.', max_length=10)),
                ('text', models.CharField(blank=True, help_text='What is searched for.', max_length=200)),
                ('user', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to=settings.AUTH_USER_MODEL)),
            ],
            options={
                'default_permissions': (),
            },
        ),
        migrations.CreateModel(
            name='Presence',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('since', models.DateTimeField()),
                ('at', models.DateTimeField()),
                ('item', models.ForeignKey(db_constraint=False, on_delete=django.db.models.deletion.CASCADE, related_name='+', to='delayedq_desk.item')),
                ('user', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to=settings.AUTH_USER_MODEL)),
            ],
            options={
                'default_permissions': (),
            },
        ),
        migrations.AddIndex(
            model_name='item',
            index=models.Index(fields=['is_open', 'queue', '-priority', 'due_or_last', 'id'], name='delayedq_desk_open'),
        ),
        migrations.AddIndex(
            model_name='item',
            index=models.Index(fields=['queue', 'state', 'skill', '-priority', 'due_or_last', 'id'], name='delayedq_desk_next'),
        ),
        migrations.AddIndex(
            model_name='item',
            index=models.Index(fields=['state', 'queue', '-priority', 'due_or_last', 'id'], name='delayedq_desk_list'),
        ),
        migrations.AddIndex(
            model_name='item',
            index=models.Index(fields=['queue', 'state', 'until', 'id'], name='delayedq_desk_ending'),
        ),
        migrations.AddIndex(
            model_name='item',
            index=models.Index(fields=['is_open', 'queue', 'opened_at', 'state'], name='delayedq_desk_since'),
        ),
        migrations.AddIndex(
            model_name='item',
            index=models.Index(fields=['holder', 'state', 'until', 'queue', 'opened_at'], name='delayedq_desk_held'),
        ),
        migrations.AddIndex(
            model_name='item',
            index=models.Index(fields=['decided_at'], name='delayedq_desk_decided'),
        ),
        migrations.AddIndex(
            model_name='item',
            index=models.Index(fields=['kind', 'agreed', 'decided_at'], name='delayedq_desk_agreed'),
        ),
        migrations.AddIndex(
            model_name='item',
            index=models.Index(fields=['kind', 'key'], name='delayedq_desk_key'),
        ),
        migrations.AddIndex(
            model_name='item',
            index=models.Index(fields=['is_open', 'closed_at', 'id'], name='delayedq_desk_closed'),
        ),
        migrations.AddConstraint(
            model_name='skill',
            constraint=models.UniqueConstraint(fields=('user', 'name'), name='delayedq_desk_one_skill'),
        ),
        migrations.AddConstraint(
            model_name='replytemplate',
            constraint=models.UniqueConstraint(fields=('kind', 'field', 'name'), name='delayedq_desk_one_template'),
        ),
        migrations.AddConstraint(
            model_name='savedview',
            constraint=models.UniqueConstraint(fields=('user', 'name'), name='delayedq_desk_one_view'),
        ),
        migrations.AddConstraint(
            model_name='presence',
            constraint=models.UniqueConstraint(fields=('item', 'user'), name='delayedq_desk_one_presence'),
        ),
        migrations.RunPython(set_collation, migrations.RunPython.noop, atomic=False),
    ]
