"""Workers sleep past their leases at every instant at which a late write is the danger, and all wake up at once."""

from __future__ import annotations

from collimate_rl.client import CollimateClient
from tests.fixtures.crashes import Faults, StartFaulty, check_nothing_stayed
from tests.fixtures.recovery import sessions_of
from tests.fixtures.worker_batches import RIGHT, Audit, slow
from tests.fixtures.worker_nodes import HASTY, Node, until

POINTS = (
    "bell_popped",
    "job_started",
    "claimed",
    "session_created",
    "noted",
    "graded",
    "verdict_written",
    "all_judged",
    "published",
)
"""A process each: whoever comes to one where somebody sleeps already goes on to the next."""
OWNED = POINTS[2:8]
ENDED = POINTS[7:]
"""With every verdict written nobody has to own the batch again: the janitor that finds it answers it."""
JUDGED_BY = {"verdict_written": (1, 2), "all_judged": (1, 1), "published": (1, 1)}
"""Which owner judged which candidate, where it wasn't the next one for both. What is unowned has but one."""


def batches_by_point(sleeping: Node, faults: Faults, audit: Audit) -> dict[str, str]:
    """Which batch each sleeper has. Which of the unowned ones it is makes no difference."""
    pids = {point: faults.stopped(point) for point in POINTS}
    names = {pid: name for name, pid in sleeping.child_pids().items()}
    claimed = {event["worker"]: event["k"] for event in sleeping.events("batch_claimed")} | audit.queue.owned("n1")
    found = {point: claimed.get(names[pid]) for point, pid in pids.items()}
    unowned = iter(sorted(set(audit.ks) - set(found.values())))
    return {point: k or next(unowned) for point, k in found.items()}


def test_whoever_wakes_up_late_writes_nothing_and_deletes_nothing_of_the_next_owners(
    faulty: StartFaulty, faults: Faults, audit: Audit, daemon: CollimateClient
) -> None:
    sleeping = faulty(",".join(f"{point}=stop" for point in POINTS), processes=len(POINTS), slots=16, timing=HASTY)
    sleeping.wait_for("worker_ready", count=len(POINTS))
    ks = [audit.submit([RIGHT, slow(1.5)], id=f"b{number}", recovery="attach") for number in range(len(POINTS))]
    batches = batches_by_point(sleeping, faults, audit)
    assert set(batches.values()) == set(ks)
    assert audit.answered() == {batches["published"]: 1}
    other = faulty("", "n2", processes=4)

    def taken_over() -> bool:
        return all(audit.state(k, "status") == "done" or audit.state(k, "node") == "n2" for k in ks)

    until(taken_over, "somebody's batch was not taken over")
    for point in POINTS:
        faults.wake(point)

    for point, k in batches.items():
        result = audit.result(k)
        assert [v.reward for v in result.results] == [1.0, 1.0], point
        owner = 2 if point in OWNED else 1
        assert tuple(v.attempt for v in result.results) == JUDGED_BY.get(point, (owner, owner)), point
        assert audit.state(k, "losses") == "", point  # they live, and only a death is held against a batch
        until(lambda k=k: sessions_of(daemon, k) == set(), f"{point}: its sessions stayed")
    # Each owner hears of it: its lease is another's, or its end is no news. A bell that came too late may be no job.
    for point in (*OWNED, "published"):

        def ended(k: str = batches[point]) -> bool:
            return any(sleeping.events(name, k=k) for name in ("batch_fenced", "batch_skipped", "batch_published"))

        until(ended, f"{point}: it never came to an end")
    assert sleeping.stop() == other.stop() == 0
    for point, k in batches.items():
        published = {each.name: len(each.events("batch_published", k=k)) for each in (sleeping, other)}
        assert published == {"n1": int(point == "published"), "n2": int(point not in ENDED)}, point
        late = {event["session"] for event in sleeping.events("session_deleted", k=k)}
        assert late.isdisjoint({v.session_id for v in audit.result(k).results if v.node == "n2"}), point
        assert sleeping.events("batch_error", k=k) == [], point
    assert sleeping.events("process_ended") == sleeping.events("process_killed") == []
    check_nothing_stayed(audit)
