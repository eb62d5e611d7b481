"""The pipeline over the queue and its history, on Spark. Nothing here imports Django: executors import it too."""
