"""When a run draws a seed of its own, and when it is part of something that is to be reproduced."""

from typing import Any

import pytest

from loadcell.flags.resolve import scenario_from_flags, with_fresh_seed

BASE = {"base_url": ["http://h:1"], "model": "m", "concurrency": 1, "num_prompts": 1}


def test_each_run_draws_another_seed_for_prompts_and_arrivals_alike() -> None:
    scenarios = [scenario_from_flags(with_fresh_seed(BASE))[0] for _ in range(8)]
    assert len({scenario.seed for scenario in scenarios}) == 8
    assert all(scenario.seed == scenario.workload.seed for scenario in scenarios)


@pytest.mark.parametrize("told", [{"seed": 0}, {"seed": "0"}, {"cell": "a"}, {"repeat": 2}, {"same_prompts": True}])
def test_what_is_to_be_reproduced_keeps_its_seed(told: dict[str, Any]) -> None:
    scenario, _ = scenario_from_flags(with_fresh_seed({**BASE, **told}))
    assert scenario.seed == 0
