"""Move messages that wait in another task framework of the same project, and copy its schedules."""
