"""What waits in another task framework of the same project, moved here; and its schedules, copied."""
