"""All models live in the database that the current test chose; see the fixture `alias`."""


class ChosenDatabase:
    """Threads see the choice too, so it is no context variable."""

    alias = "default"

    def db_for_read(self, model, **hints):
        return ChosenDatabase.alias

    db_for_write = db_for_read

    def allow_relation(self, first, second, **hints):
        return True
