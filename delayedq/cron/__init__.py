"""Ticks in the database: schedules of the settings (`definitions`, `beat`), and of `queue.cron` (`service`).

`core.cron` says when a schedule ticks; `placing` puts ticks into the queue, each exactly once.
"""
