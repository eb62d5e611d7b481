"""The pipeline's side of the database: what is under way, who does it, and the steps as tasks of the queue.

What runs on Spark is in `delayedq.spark`, which knows no Django.
"""
