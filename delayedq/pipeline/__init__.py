"""The pipeline, an app of its own: files become messages, history moves into a lake, reports, and replays.

`models`      which loads and archive batches there are, and how far they got
`steps`       load, archive, report and replay, as `manage.py run_pipeline` runs them; `tasks` runs them in the queue
`spark`       what runs on Spark, on the driver and in executors; without Django
`report`      the figures of the report and its page; without Django

A project installs it with "delayedq.pipeline" in INSTALLED_APPS.
"""
