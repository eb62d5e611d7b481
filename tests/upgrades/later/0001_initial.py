from importlib import import_module

Migration = import_module("delayedq.migrations.0001_initial").Migration
