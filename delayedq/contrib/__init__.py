"""What helps projects that used something else before."""
