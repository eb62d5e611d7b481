"""`manage.py demo`: replays a recorded day, sped up, against real workers, and checks that each reminder arrived.

timeline.py  the recorded day, its events, and a fast clock; pure
player.py    makes the changes that the events of the timeline ask for
workers.py   `manage.py run_workers` as a subprocess
screen.py    the progress display
verdict.py   compares the database with the record
demo.py      runs the steps in order
serve.py     serves the site afterwards (`--serve`)
"""
