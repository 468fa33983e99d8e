"""Knees, powers, and what a training run needs: arithmetic on given numbers."""

from __future__ import annotations

import random

import pytest

from benchmarks.projection import RUNS, Costs, Run, needs, one_server, table
from benchmarks.scale import widths
from benchmarks.simulated import VALUE, Latency, answer_to
from benchmarks.sweeps import Point, Sweep, knee, order, table_of
from collimate_rl.grading.frames import compose, read_report

COSTS = Costs(redis_s=0.0005, worker_s=0.002, daemon_s=0.016, idle_s=0.003)


def test_a_flat_cost_has_no_knee() -> None:
    assert knee([1, 10, 100], [1.0, 1.1, 0.9]) is None


def test_a_knee_is_where_the_cost_is_twice_the_lowest_before() -> None:
    assert knee([1, 10, 100, 1000], [4.0, 1.0, 1.9, 2.1]) == 1000
    assert knee([1, 10], [1.0, 2.0]) == 10


def test_a_falling_cost_has_no_knee() -> None:
    assert knee([1, 8, 64], [223.0, 100.0, 50.0]) is None


@pytest.mark.parametrize("power", [0, 1, 2])
def test_the_power_by_which_a_cost_grows(power: int) -> None:
    sizes = [1.0, 10.0, 100.0]
    assert order(sizes, [3.0 * size**power for size in sizes]) == pytest.approx(power)


def test_no_power_can_be_told_of_one_point_or_of_nothing_measured() -> None:
    assert order([1], [1.0]) is None
    assert order([1, 10], [0.0, 1.0]) is None
    assert order([10, 10], [1.0, 2.0]) is None


def swept(power: int) -> str:
    points = tuple(Point(x=x, ms={"cost": float(x**power)}) for x in (1, 10, 100))
    return table_of(Sweep(key="s", what="size", unit="call", points=points)).note


def test_what_is_steeper_than_linear_is_said() -> None:
    assert swept(0) == "no knee"
    assert "knee at 10" in swept(1)
    assert "STEEPER" not in swept(1)
    assert "STEEPER THAN LINEAR" in swept(2)


def test_points_may_lack_a_cost() -> None:
    sweep = Sweep(
        key="s", what="size", unit="call", points=(Point(x=1, ms={"a": 1.0, "b": 2.0}), Point(x=2, ms={"a": 1}))
    )
    assert table_of(sweep).rows == (("1", 1.0, 2.0), ("2", 1, None))


def test_one_server_ends_where_its_core_does_and_idle_nodes_take_their_part() -> None:
    assert one_server(COSTS, 0, 1.0) == pytest.approx(2000)
    assert one_server(COSTS, 100, 1.0) == pytest.approx(1400)
    assert one_server(COSTS, 1000, 1.0) == 0


def test_a_small_run_fits_one_node_and_one_server() -> None:
    found = needs(Run(name="small", groups=64, width=8, grading_s=60), COSTS)
    assert (found.nodes, found.servers) == (1, 1)
    assert found.per_second == pytest.approx(64 * 8 / 60)


def test_needs_grow_with_the_run_and_servers_hold_what_they_are_given() -> None:
    found = [needs(Run(name=str(n), groups=n, width=64, grading_s=30), COSTS) for n in (64, 1024, 16384)]
    assert [each.servers for each in found] == sorted(each.servers for each in found)
    assert found[0].servers < found[-1].servers
    for each in found:
        nodes_of_one = -(-each.nodes // each.servers)
        assert each.per_second / each.servers <= one_server(COSTS, nodes_of_one)
        assert each.cores * 0.6 >= each.per_second * (0.002 + 0.016 + 0.05)
        assert each.slots >= each.per_second * 0.2


def test_slow_groups_need_more_worker_processes() -> None:
    quick, slow = (
        needs(Run(name="r", groups=1024, width=16, grading_s=30, slowest_s=s), COSTS).processes for s in (1.0, 30.0)
    )
    assert slow > quick


def test_the_sizing_table_has_a_row_per_run() -> None:
    assert [row[0] for row in table(COSTS).rows] == [run.name for run in RUNS]


@pytest.mark.parametrize("costs", [{"redis_s": 0.0}, {"worker_s": -1.0}, {"idle_s": -0.1}])
def test_costs_that_cannot_be_are_refused(costs: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="above zero"):
        Costs(**{"redis_s": 1.0, "worker_s": 1.0, "daemon_s": 1.0, **costs})


@pytest.mark.parametrize(("most", "told"), [(1, [1]), (2, [1, 2]), (6, [1, 2, 4, 6]), (8, [1, 2, 4, 8])])
def test_widths_double_up_to_the_widest(most: int, told: list[int]) -> None:
    assert widths(most) == told


def test_drawn_latencies_have_the_mean_that_they_say() -> None:
    latency = Latency(median_s=0.2, spread=0.5, slow=0.1, slow_s=5.0)
    source = random.Random(7)
    drawn = [latency.draw(source) for _ in range(20_000)]
    assert sum(drawn) / len(drawn) == pytest.approx(latency.mean_s, rel=0.05)
    assert sum(each == 5.0 for each in drawn) / len(drawn) == pytest.approx(0.1, rel=0.15)


def test_no_latency_below_zero() -> None:
    with pytest.raises(ValueError, match="no distribution"):
        Latency(median_s=0.0)


def test_the_simulated_daemon_answers_as_the_runner_reports() -> None:
    ops = [{"f": ["n", "solve"], "a": ["t"]}] * 3
    framed = compose("runner", {"id": None, "ops": ops}, timeout_seconds=10, seed=None)
    files = [{"path": path, "content": content} for path, content in framed.request.files]
    report = read_report(answer_to({"code": "", "files": files}, 0.5)["stdout"], framed.mark, len(ops))
    assert report is not None
    assert [case.line for case in report.cases] == [f'{{"v":{VALUE}}}'] * 3
