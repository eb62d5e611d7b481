"""delayedq in the harness of https://github.com/hardbyte/postgresql-job-queue-benchmarking, which others keep."""
