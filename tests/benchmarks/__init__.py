"""What is measured, never asserted. Run on a quiet machine; compare within one run."""
