"""Help for projects that used something else before."""
