"""Running a verdict again: the same candidate, spec, seed, template and limits, and what each case was about.

Expected values are shown here. They are the operator's own data; nothing in this package runs on the way of a reward.
"""
