"""What the trainers' hooks share: settings, reading rows, scoring over a `Grader`, the wiring to a daemon."""
