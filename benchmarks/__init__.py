"""`python -m benchmarks`: ratios within one run, medians of several rounds. Not a test, and no part of the package."""
