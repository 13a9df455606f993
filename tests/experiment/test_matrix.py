"""A specification -> cells: multiplied, named, ordered, hashed."""

import random
from typing import Any

import msgspec
import pytest

from loadcell.errors import UserError
from loadcell.experiment.matrix import Cell, matrix, only
from loadcell.experiment.spec import ExperimentSpec, ScenarioRow
from loadcell.flags.resolve import scenario_from_flags
from loadcell.fleet.spec import FleetSpec

FLEET = FleetSpec(engine="simulated")


def row(
    name: str | None = None, slo: tuple[str, ...] | None = None, gate: bool | None = None, repeats: int | None = None, **flags: Any
) -> ScenarioRow:
    return ScenarioRow(flags=flags, name=name, slo=slo, gate=gate, repeats=repeats)


def spec(*rows: ScenarioRow, **more: Any) -> ExperimentSpec:
    return ExperimentSpec(**{"name": "x", "fleet": FLEET, "scenario": rows, **more})


def names(*rows: ScenarioRow, **more: Any) -> list[str]:
    return [cell.name for cell in matrix(spec(*rows, **more))]


def only_cell(*rows: ScenarioRow, **more: Any) -> Cell:
    (cell,) = matrix(spec(*rows, **more))
    return cell


def test_lists_multiply_with_the_first_outermost() -> None:
    assert names(row(concurrency=[1, 8], input_len=[16, 32], output_len=4)) == [
        "c1-i16-o4", "c1-i32-o4", "c8-i16-o4", "c8-i32-o4",
    ]  # fmt: skip


def test_lists_of_bench_multiply_every_scenario() -> None:
    assert names(row(input_len=1), row(input_len=2), bench={"concurrency": [1, 2]}) == ["c1-i1", "c2-i1", "c1-i2", "c2-i2"]


def test_bench_alone_is_one_scenario() -> None:
    assert names(bench={"concurrency": 3}) == ["c3"]


def test_services_alone_have_no_cells() -> None:
    assert matrix(spec()) == ()


def test_a_flag_that_takes_several_texts_is_no_axis() -> None:
    cell = only_cell(row(concurrency=1, header=["A=1", "B=2"], goodput=["ttft:200", "tpot:50"]))
    assert cell.flags["header"] == ["A=1", "B=2"]
    assert len(matrix(spec(row(concurrency=1, goodput=[["ttft:200"], ["ttft:400"]])))) == 2


def test_tables_multiply_as_values() -> None:
    cells = matrix(spec(row(concurrency=1, extra_body=[{"a": 1}, {"a": 2}])))
    assert [cell.flags["extra_body"] for cell in cells] == [{"a": 1}, {"a": 2}]
    assert len({cell.name for cell in cells}) == 2


def test_a_scenario_goes_before_bench_under_any_name_of_a_flag() -> None:
    cell = only_cell(row(max_concurrency=2), bench={"concurrency": 8, "temperature": 0.5})
    assert "concurrency" not in cell.flags
    assert (cell.flags["max_concurrency"], cell.flags["temperature"], cell.scenario) == (2, 0.5, "c2")


@pytest.mark.parametrize(("concurrency", "given", "sent"), [(1, "20x", 20), (32, "20x", 640), ("4", "2 x", 8), (3, "0.5x", 2), (8, 5, 5)])
def test_prompts_per_concurrency(concurrency: Any, given: Any, sent: int) -> None:
    cell = only_cell(row(concurrency=concurrency), bench={"num_prompts": given, "warmup_requests": "1x"})
    assert cell.flags["num_prompts"] == sent
    assert cell.flags["warmup_requests"] == int(concurrency)


def test_prompts_per_what_is_no_concurrency() -> None:
    with pytest.raises(UserError, match=r"concurrency: 'four': expected a whole number"):
        matrix(spec(row(concurrency="four"), bench={"num_prompts": "20x"}))
    with pytest.raises(UserError, match="num_prompts: 20x is per concurrency, and this scenario has none"):
        matrix(spec(row(concurrency="unlimited", request_rate=1), bench={"num_prompts": "20x"}))


def test_a_name_of_ones_own_takes_the_lists_values() -> None:
    assert names(row(name="long", concurrency=[1, 8], input_len=9), row(name="short", concurrency=1)) == ["long-c1", "long-c8", "short"]


def test_what_else_differs_is_in_the_name() -> None:
    assert names(row(concurrency=1, temperature=[0.0, 0.7])) == ["c1-temperature-0", "c1-temperature-0.7"]
    assert names(row(request_rate=[0.5, 4])) == ["r0.5", "r4"]


def test_twins_are_refused() -> None:
    with pytest.raises(UserError, match="two scenarios are called a"):
        matrix(spec(row(name="a", concurrency=1), row(name="a", concurrency=2)))
    with pytest.raises(UserError, match="two scenarios are called c1"):
        matrix(spec(row(concurrency=1), row(concurrency=1)))


# --- repeats and order


def test_repeats_are_interleaved() -> None:
    cells = matrix(spec(row(concurrency=[1, 2, 4]), repeats=3, shuffle=False))
    assert [(cell.scenario, cell.repeat) for cell in cells] == [(f"c{c}", r) for r in range(3) for c in (1, 2, 4)]
    assert [cell.name for cell in cells[:4]] == ["c1", "c2", "c4", "c1-r2"]
    assert [cell.flags["repeat"] for cell in cells] == [0] * 3 + [1] * 3 + [2] * 3


def test_by_default_the_first_repeat_is_in_order_and_further_ones_drawn() -> None:
    rows = row(concurrency=list(range(1, 21)))
    cells = matrix(spec(rows, repeats=3))
    orders = [[cell.flags["concurrency"] for cell in cells if cell.repeat == repeat] for repeat in range(3)]
    assert orders[0] == sorted(orders[0])
    assert orders[1] != orders[0] != orders[2] != orders[1]
    assert sorted(orders[1]) == sorted(orders[2]) == orders[0]
    assert matrix(spec(rows, repeats=3)) == cells
    assert [cell.name for cell in matrix(spec(rows, repeats=3, seed=1))] != [cell.name for cell in cells]


def test_shuffle_draws_the_first_one_too() -> None:
    first = [cell.flags["concurrency"] for cell in matrix(spec(row(concurrency=list(range(1, 21))), shuffle=True))]
    assert first != sorted(first)


def test_a_scenario_may_be_repeated_on_its_own() -> None:
    assert names(row(concurrency=1, repeats=2), row(concurrency=2)) == ["c1", "c2", "c1-r2"]


def test_cells_draw_prompts_of_their_own() -> None:
    cells = matrix(spec(row(concurrency=[1, 2]), repeats=2, seed=5))
    keys = {(cell.flags["seed"], cell.flags["cell"], cell.flags["repeat"]) for cell in cells}
    assert len(keys) == len(cells) == 4
    assert {seed for seed, _, _ in keys} == {5}


# --- limits


def test_a_scenarios_limits_replace_and_add() -> None:
    common = ("ttft p95 <= 200ms", "success_rate >= 99%")
    texts = [slo.text for slo in only_cell(row(concurrency=1, slo=("ttft_p95 <= 1s", "tpot mean <= 5ms")), slo=common).slos]
    assert texts == ["ttft_p95 <= 1s", "success_rate >= 99%", "tpot mean <= 5ms"]
    assert only_cell(row(concurrency=1, slo=()), slo=common).slos == ()
    assert [slo.text for slo in only_cell(row(concurrency=1), slo=common).slos] == list(common)


def test_a_gate_needs_a_limit_and_may_be_one_scenarios() -> None:
    cells = matrix(spec(row(concurrency=1, gate=False), row(concurrency=2), row(concurrency=3, slo=()), gate=True, slo=("ttft p50 <= 1s",)))
    assert [cell.gate for cell in cells] == [False, True, False]


# --- what the load is told


def test_every_cell_is_a_load_that_bench_takes() -> None:
    for cell in matrix(spec(row(concurrency=[1, 2], num_prompts="2x"), slo=("ttft p50 <= 1s",), seed=3)):
        scenario, output = scenario_from_flags({**cell.flags, "base_url": ["http://127.0.0.1:1"]})
        assert scenario.seed == 3
        assert scenario.workload.cell == cell.scenario
        assert scenario.slos == cell.slos
        assert output.name == cell.name


def test_the_fleet_says_which_api() -> None:
    fleet = msgspec.structs.replace(FLEET, api="completions")
    assert only_cell(row(concurrency=1), fleet=fleet).flags["endpoint_type"] == "completions"
    assert only_cell(row(concurrency=1, backend="openai-chat"), fleet=fleet).flags.get("endpoint_type") is None
    assert "devices" not in only_cell(row(concurrency=1)).flags
    assert only_cell(row(concurrency=1), bench={"devices": 3}, fleet=fleet).flags["devices"] == 3


def test_a_matrix_that_nobody_means_is_refused() -> None:
    hundred = list(range(1, 101))
    with pytest.raises(UserError, match="1,000,000 scenarios"):
        matrix(spec(row(concurrency=hundred, input_len=hundred, output_len=hundred)))
    with pytest.raises(UserError, match="1,000,000,000 cells"):
        matrix(spec(row(concurrency=1), repeats=10**9))


# --- the hash


def hash_of(**more: Any) -> str:
    return only_cell(row(concurrency=1, **more.pop("flags", {})), **more).hash


def test_the_hash_is_of_what_shapes_the_cell() -> None:
    same = hash_of(fleet=FLEET, slo=("ttft p50 <= 1s",))
    for key, value in {"start_timeout": "2h", "port": 9, "restarts": 0, "log_cap": 5, "stop_timeout": "1s"}.items():
        assert hash_of(fleet=msgspec.structs.replace(FLEET, **{key: value}), slo=("ttft p50 <= 1s",)) == same, key
    others = [
        hash_of(),
        hash_of(fleet=msgspec.structs.replace(FLEET, args={"a": 1})),
        hash_of(fleet=msgspec.structs.replace(FLEET, replicas=2)),
        hash_of(fleet=msgspec.structs.replace(FLEET, env={"A": "1"})),
        hash_of(seed=1),
        hash_of(flags={"temperature": 0.1}),
        hash_of(fleet=None),
    ]
    assert len({same, *others}) == len(others) + 1


def test_the_hash_knows_no_order_of_keys_and_no_other_scenarios() -> None:
    one = matrix(spec(row(concurrency=1, input_len=2), row(concurrency=2, input_len=2)))[0]
    other = matrix(spec(row(input_len=2, concurrency=1)))[0]
    assert one.hash == other.hash
    assert one.name == other.name


def test_more_repeats_keep_the_cells_that_there_are() -> None:
    rows = row(concurrency=[1, 2])
    few, many = ({cell.name: cell.hash for cell in matrix(spec(rows, repeats=n))} for n in (2, 5))
    assert few.items() <= many.items()


def test_hashes_are_the_same_in_another_process() -> None:
    random.seed(1)
    assert hash_of(seed=7) == hash_of(seed=7)
    assert len(hash_of()) == 16


# --- --only


def test_only_takes_cells_and_scenarios_by_pattern() -> None:
    cells = matrix(spec(row(concurrency=[1, 2, 16]), repeats=2, shuffle=False))
    assert [cell.name for cell in only(cells, ["c1*"])] == ["c1", "c16", "c1-r2", "c16-r2"]
    assert [cell.name for cell in only(cells, ["c2-r2", "c1"])] == ["c1", "c1-r2", "c2-r2"]
    assert only(cells, []) == cells
    with pytest.raises(UserError, match="--only d: no scenario has such a name; there are c1, c2, c16"):
        only(cells, ["c1", "d"])
