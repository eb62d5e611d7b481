"""The operator's queries and edits, without HTTP: used by the admin and by `manage.py delayedq`."""
