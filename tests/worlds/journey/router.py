"""Reads of what grows go to the replica."""


class Replica:
    def db_for_read(self, model, **hints):
        return "replica" if model._meta.app_label in {"delayedq", "journey"} else "default"

    def db_for_write(self, model, **hints):
        return "default"

    def allow_relation(self, one, other, **hints):
        return True

    def allow_migrate(self, alias, app_label, **hints):
        return alias == "default"
