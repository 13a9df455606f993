"""What is refused, what is said, and the cap of a closed loop."""

import math

import pytest

from loadcell.errors import UserError
from loadcell.schedule import (
    UNLIMITED,
    ScheduleSpec,
    cap_at,
    describe,
    is_paced,
    lasts_its_duration,
    load_points,
    mode,
    parse_limit,
    validate,
)

NS = 1_000_000_000
RAMP = {"ramp_up_strategy": "linear", "ramp_up_start_rps": 1.0, "ramp_up_end_rps": 5.0}


@pytest.mark.parametrize(
    ("fields", "flag"),
    [
        ({"concurrency": 0}, "--concurrency 0"),
        ({"concurrency": -1}, "--concurrency -1"),
        ({"request_rate": 0.0}, "--request-rate 0"),
        ({"request_rate": -1.0}, "--request-rate -1"),
        ({"request_rate": math.nan}, "--request-rate nan"),
        ({"request_rate": 1.0, "burstiness": 0.0}, "--burstiness 0"),
        ({"request_rate": 1.0, "burstiness": math.nan}, "--burstiness nan"),
        ({"request_rate": 1.0, "arrival": "constant", "burstiness": 2.0}, "--burstiness 2"),
        ({"num_prompts": 0}, "--num-prompts 0"),
        ({"duration_s": 0.0}, "--duration 0"),
        ({"duration_s": math.inf}, "--duration inf"),
        ({"num_prompts": None, "concurrency": 1}, "neither --num-prompts nor --duration"),
        ({"num_prompts": None, "duration_s": 5.0}, "--concurrency or --request-rate"),
        ({"ramp_up_strategy": "linear", "ramp_up_start_rps": 1.0}, "--ramp-up-end-rps"),
        ({"ramp_up_strategy": "linear", "ramp_up_end_rps": 1.0}, "--ramp-up-start-rps"),
        ({"ramp_up_start_rps": 1.0}, "--ramp-up-strategy"),
        ({**RAMP, "ramp_up_start_rps": 0.0}, "--ramp-up-start-rps 0"),
        ({**RAMP, "request_rate": 3.0}, "--request-rate 3"),
        ({"ramp_concurrency_s": 5.0}, "--concurrency"),
        ({"ramp_concurrency_s": -1.0, "concurrency": 2}, "--ramp-concurrency -1"),
        ({"ramp_concurrency_s": 5.0, "concurrency": 2, "request_rate": 2.0}, "closed loop"),
        ({"steps": ((1.0, 0.0),)}, "--steps 1:0"),
        ({"steps": ((-1.0, 5.0),)}, "--steps -1:5"),
        ({"steps": ((0.0, 5.0),)}, "above 0"),
        ({"steps": ((1.0, 5.0),), "request_rate": 1.0}, "--steps and --request-rate"),
        ({"trace_s": (0.0, 2.0, 1.0)}, "arrival 3"),
        ({"trace_s": (-1.0,)}, "arrival 1"),
        ({"burst_size": 0}, "--burst-size 0"),
        ({"burst_size": 4}, "--burst-size 4"),
        ({"request_rate": 1e6, "num_prompts": None, "duration_s": 3600.0}, "3.6e+09 arrivals"),
        ({"num_prompts": 10**9}, "--num-prompts 1000000000"),
    ],
)
def test_refused_with_the_flag_named(fields, flag):
    with pytest.raises(UserError) as refusal:
        validate(ScheduleSpec(**fields))
    assert flag in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"concurrency": 1, "num_prompts": None, "duration_s": 1.0},
        {"request_rate": math.inf},
        {"request_rate": 0.25, "burstiness": math.inf},
        {"request_rate": 5.0, "concurrency": 3},
        {**RAMP, "concurrency": 3},
        {"ramp_concurrency_s": 3.0, "concurrency": 3},
        {"steps": ((1.0, 5.0), (0.0, 1.0)), "num_prompts": None},
        {"trace_s": (0.0, 0.0, 1.0), "num_prompts": None},
        {"request_rate": 5.0, "burst_size": 5},
    ],
)
def test_accepted(fields):
    validate(ScheduleSpec(**fields))


def test_unlimited_has_its_own_word():
    assert parse_limit("8", "--concurrency") == 8
    assert parse_limit("unlimited", "--concurrency") is None
    for text in ("0", "-1", "inf", "", "2.5"):
        with pytest.raises(UserError, match=f"--concurrency {text}: must be a whole number from 1, or 'unlimited'"):
            parse_limit(text, "--concurrency")
    assert describe(ScheduleSpec(request_rate=5.0)) == "open loop, Poisson at 5/s, concurrency unlimited"
    assert describe(ScheduleSpec()) == "all at once, concurrency unlimited"


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"concurrency": 8}, "closed loop, concurrency 8"),
        ({"concurrency": 8, "ramp_concurrency_s": 10.0}, "closed loop, concurrency 8 (growing from 1 over 10 s)"),
        ({"request_rate": 5.0, "arrival": "constant", "concurrency": 2}, "open loop, constant at 5/s, concurrency 2"),
        ({"request_rate": 5.0, "burstiness": 0.5}, "open loop, gamma (burstiness 0.5) at 5/s, concurrency unlimited"),
        ({"request_rate": 5.0, "burst_size": 4}, "open loop, Poisson at 5/s in bursts of 4, concurrency unlimited"),
        (RAMP, "open loop, Poisson, linear ramp from 1/s to 5/s, concurrency unlimited"),
        ({"steps": ((1.0, 5.0), (2.0, 6.0))}, "open loop, Poisson in 2 steps (1/s for 5 s, 2/s for 6 s), concurrency unlimited"),
        ({"trace_s": (0.0, 1.0)}, "open loop, trace of 2 arrivals, concurrency unlimited"),
    ],
)
def test_described(fields, text):
    assert describe(ScheduleSpec(**fields)) == text


def test_modes():
    assert mode(ScheduleSpec()) == "at_once"
    assert mode(ScheduleSpec(concurrency=1, request_rate=math.inf)) == "closed"
    assert is_paced(ScheduleSpec(concurrency=1, request_rate=3.0))
    assert not is_paced(ScheduleSpec(concurrency=1))


def test_the_cap_grows_from_one_to_the_concurrency():
    spec = ScheduleSpec(concurrency=5, ramp_concurrency_s=4.0)
    assert [cap_at(spec, int(s * NS)) for s in (-1, 0, 0.99, 1, 2, 3.5, 4, 100)] == [1, 1, 1, 2, 3, 4, 5, 5]
    assert cap_at(ScheduleSpec(concurrency=5), 0) == 5
    assert cap_at(ScheduleSpec(), 0) == UNLIMITED


def test_load_points_are_distinct_and_rise():
    points = load_points(0.2, 4.3, 10)
    assert len(points) == len(set(points)) == 10
    assert list(points) == sorted(points)
    assert (points[0], points[-1]) == (0.2, 4.3)


def test_whole_load_points_fall_together_and_are_dropped():
    assert load_points(0.2, 4.3, 10, whole=True) == (1.0, 2.0, 3.0, 4.0)
    assert load_points(1, 64, 8, whole=True) == (1.0, 10.0, 19.0, 28.0, 37.0, 46.0, 55.0, 64.0)
    assert load_points(3.0, 3.0, 5) == (3.0,)
    assert load_points(1.0, 7.0, 1) == (7.0,)


@pytest.mark.parametrize(("lo", "hi", "n"), [(0, 1, 3), (2, 1, 3), (1, 2, 0), (1, math.inf, 3), (math.nan, 2, 3)])
def test_load_points_refuse_what_is_no_range(lo, hi, n):
    with pytest.raises(UserError, match="load points"):
        load_points(lo, hi, n)


@pytest.mark.parametrize(
    ("fields", "arrivals", "lasts"),
    [
        ({"request_rate": 5.0, "duration_s": 10.0, "num_prompts": None}, 48, True),
        ({"request_rate": 5.0, "duration_s": 10.0, "num_prompts": 50}, 48, True),
        ({"request_rate": 5.0, "duration_s": 10.0, "num_prompts": 48}, 48, False),
        ({"request_rate": 5.0, "num_prompts": 48}, 48, False),
        ({"steps": ((5.0, 2.0),), "duration_s": 10.0, "num_prompts": None}, 9, False),
        ({"trace_s": (0.0, 1.0), "duration_s": 10.0, "num_prompts": None}, 2, False),
        (RAMP | {"duration_s": 10.0, "num_prompts": None}, 30, True),
    ],
)
def test_a_load_lasts_its_duration_where_nothing_else_ends_it(fields, arrivals, lasts):
    assert lasts_its_duration(ScheduleSpec(**fields), arrivals) == lasts
