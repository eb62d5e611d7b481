"""The store on SQLite: one writer at a time, so each verb that writes is one short transaction."""
