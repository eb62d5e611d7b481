"""What runs the messages: `supervisor` starts processes, in each a `loop` claims, dispatches and settles."""
