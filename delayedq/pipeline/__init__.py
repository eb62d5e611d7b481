"""The pipeline, an app of its own: files become messages, history moves into a lake, reports, and replays.

`models`      which loads and archive batches there are, and how far they got
`commands`    the steps, as `manage.py run_pipeline` runs them; `tasks` runs them in the queue
`lake`        the table that history moves into; without Spark and without Django
`spark`       what runs on Spark, on the driver and in executors; without Django
`report`      the figures of the report and its page; without Django

A project installs it with "delayedq.pipeline" in INSTALLED_APPS.
"""
