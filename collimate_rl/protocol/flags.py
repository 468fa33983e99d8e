"""What smells about a candidate's run. A flag never changes a reward; flags are counted per run.

A closed set for whoever writes verdicts. Whoever reads them takes any short text: a later worker may know more.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

FLAGS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "exited_early": "it ended its process, or raised SystemExit, where a call was to be answered",
        "result_like_output": "it printed what a grader's own result would look like",
        "killed_processes": "a process of its sandbox died by a signal that only somebody's kill sends",
        "touched_harness": "files or folders of the harness in its sandbox changed while it ran",
        "names_harness": "its code names files, folders or modules of the harness",
        "opaque_result": "it returned an object that is no plain data, which equals no expected value",
        "flooded_output": "it printed more than 8 MiB, or more than its case may",
        "bad_frame": "a result that it sent does not decode",
        "nan": "a result holds NaN, which slips through comparisons",
        "ends_iteration": "a call raised what ends the loops of a test",
        "skips": "a call raised what skips the cases of a test",
        "runs_result": "the test would have run a result as code",
        "replanned": "its results led the test off the first plan of calls",
        "checker_missing": "the problem has many right answers and the row no checker: a right one may have failed",
        "own_equality": "an object of a class of its own claimed to equal plain data, beside the test",
        "patched_modules": "it changed what the tests beside it rely on: builtins, unittest, pytest",
        "plan_cut": "planning the test's calls was cut off by time",
        "plan_full": "the test has more calls than a plan holds",
        "dropped_files": "files of its work were left out, for they are tests or say how tests are run",
        "timeout_retried": "it ran out of time while it waited for a processor, and was run once more on a quiet slot",
        "timeout_starved": "it ran out of time while it waited for a processor, and was not run again",
        "timeout_unclear": "it ran out of time, and the kernel does not tell whether it waited for a processor",
        "cached": "the verdict was not made for this candidate: the same one had been graded in this run",
    }
)
"""Flag to what it means."""

SMELLS: Final = (
    "exited_early",
    "result_like_output",
    "killed_processes",
    "touched_harness",
    "names_harness",
    "opaque_result",
    "flooded_output",
)
"""Those that speak of the candidate's own behaviour, however it is graded."""
