"""`manage.py delayedq torture`: real workers and producers under load, faults by a seed, and a judgement.

`audit` is the file into which every process writes what it does, `tasks` and `producer` are the load, `faults` what
happens to it, `judge` what must hold whatever happened; `run` brings them together, and `command` is what users type.
"""
