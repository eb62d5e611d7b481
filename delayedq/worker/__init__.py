"""Runs the messages: `supervisor` starts processes; in each of them a `loop` claims, dispatches and settles."""
