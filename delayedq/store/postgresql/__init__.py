"""The store on PostgreSQL: one statement, one round trip, one commit per verb."""
