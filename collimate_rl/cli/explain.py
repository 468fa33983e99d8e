"""What an outcome means, said to the researcher who asks why a candidate got its reward."""

from __future__ import annotations

OUTCOMES = {
    "passed": "Every case was right.",
    "wrong_answer": "The code ran, and at least one answer was not the expected one.",
    "runtime_error": "The code raised an exception, or its process died, before it had an answer.",
    "timeout": "A case, or the whole run, hit its time limit. Cases finished by then count.",
    "memory_limit": "The sandbox's memory limit was hit.",
    "output_limit": "A returned value, or all of them together, is larger than what is read back.",
    "no_code": "There is no code in the completion: empty, or nothing after an unclosed <think>.",
    "no_entry_point": "The code ran, and defines no function of the name that the ground truth calls.",
    "unencodable": "The returned value is no plain data (a live object, say), so it equals no expected value.",
    "tampered": "The runner's own channel was disturbed: the process exited, was killed, or wrote into the result.",
    "sandbox_killed": "The candidate brought its sandbox down, twice, while another exec on the same node worked.",
    "off_plan": "The test's calls depend on the candidate's answers in ever other ways; they could not be planned.",
}


def explain(outcome: str | None) -> str:
    """One sentence for `outcome`."""
    return OUTCOMES.get(outcome or "", f"The outcome is {outcome}.")
