"""Ticks in the database: schedules of the settings (`definitions`, `beat`), and of `queue.cron` (`service`).

`expressions` says when a schedule ticks, and has the rule for clocks that skip and repeat; `ticks` does it for daily
and regular ones of `queue.cron`. Both know neither a database nor Django. `placing` puts ticks into the queue, each
exactly once. `operator`, `admin` and `command` are for who operates them.
"""
