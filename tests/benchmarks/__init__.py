"""Benchmarks: they measure and assert nothing. Run them on a quiet machine; compare numbers only within one run."""
