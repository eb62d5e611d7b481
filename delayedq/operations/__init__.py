"""What an operator asks of the queue and does to it: for the admin and for `manage.py delayedq`."""
