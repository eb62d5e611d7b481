"""`manage.py demo`: a recorded day, played at speed against real workers, and the proof that each reminder arrived.

timeline.py  the recorded day, what becomes known when, and a fast clock; pure
player.py    does on the site's behalf what the timeline says
workers.py   `manage.py run_workers` as a subprocess
screen.py    what is shown meanwhile
verdict.py   what the database says in the end
demo.py      the order of it all
serve.py     the site afterwards, if it is asked for
"""
