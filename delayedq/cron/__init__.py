"""Ticks in the database: schedules from settings (`definitions`, `beat`), and from code (`service`).

`core.cron` says when a schedule ticks; `placing` puts ticks into the queue, each exactly once.
"""
