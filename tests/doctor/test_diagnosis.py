import msgspec
import pytest

from loadcell.cli.capability import Capability
from loadcell.cli.diagnosis import diagnose_capability, diagnose_machine
from loadcell.cli.machine import MachineFacts

GOOD_MACHINE = MachineFacts(
    fd_soft=1024,
    fd_hard=65536,
    port_low=32768,
    port_high=60999,
    fin_timeout_s=60,
    tw_reuse=2,
    somaxconn=4096,
    clock_source="tsc",
    clock_resolution_ns=1,
    clock_read_ns=40,
    clock_steps_back=0,
    timer_slack_ns=50_000,
    sleep_late_p50_us=60.0,
    sleep_late_p99_us=150.0,
    stamp_age_us=9.0,
    drain="compiled",
    cpus=4,
    cpus_of_machine=8,
    cpu_quota=None,
    load_1m=0.2,
    steal_share=0.0,
    memory_available_mb=8_000,
    proxies=(),
)
GOOD_CLIENT = Capability(
    start_s=0.5,
    cpu_us_per_token=10.0,
    steady_streams=256,
    itl_error_p50_us=1.0,
    itl_error_p99_us=8.0,
    lag_p50_ms=0.07,
    lag_p99_ms=0.2,
    full_streams=2048,
    offered_tokens_per_s=102_400.0,
    tokens_per_s=102_000.0,
    core_share=0.9,
    coalesced_share=0.01,
    server_limited=False,
)


def test_a_good_machine_has_nothing_to_do() -> None:
    assert [(f.state, f.advice) for f in diagnose_machine(GOOD_MACHINE)] == [("ok", None)] * 11
    assert [(f.state, f.advice) for f in diagnose_capability(GOOD_CLIENT)] == [("ok", None)] * 5


@pytest.mark.parametrize(
    ("changed", "name", "state"),
    [
        ({"fd_hard": 1024}, "file descriptors", "warn"),
        ({"fd_hard": 128}, "file descriptors", "fail"),
        ({"port_low": 60000, "port_high": 61000}, "local ports", "warn"),
        ({"port_low": None}, "local ports", "warn"),
        ({"clock_source": "hpet"}, "clock", "warn"),
        ({"clock_read_ns": 1_500}, "clock", "warn"),
        ({"clock_resolution_ns": 1_000_000}, "clock", "fail"),
        ({"clock_steps_back": 1}, "clock", "fail"),
        ({"sleep_late_p99_us": 2_000.0}, "sleep", "warn"),
        ({"sleep_late_p99_us": 9_000.0}, "sleep", "fail"),
        ({"stamp_age_us": None}, "kernel receive stamps", "warn"),
        ({"drain": "python"}, "drain", "warn"),
        ({"cpus": 1}, "CPUs", "warn"),
        ({"cpu_quota": 2.0}, "CPUs", "warn"),
        ({"cpu_quota": 0.5}, "CPUs", "fail"),
        ({"cpu_quota": 4.0}, "CPUs", "ok"),
        ({"load_1m": 3.5}, "load", "warn"),
        ({"steal_share": 0.02}, "load", "warn"),
        ({"steal_share": 0.2}, "load", "fail"),
        ({"steal_share": None}, "load", "ok"),
        ({"memory_available_mb": 200}, "memory", "warn"),
        ({"memory_available_mb": None}, "memory", "warn"),
        ({"somaxconn": 128}, "TCP", "warn"),
        ({"somaxconn": None, "tw_reuse": None, "fin_timeout_s": None}, "TCP", "ok"),
    ],
)
def test_one_thing_wrong_with_the_machine(changed: dict[str, object], name: str, state: str) -> None:
    findings = {f.name: f for f in diagnose_machine(msgspec.structs.replace(GOOD_MACHINE, **changed))}
    assert findings.pop(name).state == state
    assert {f.state for f in findings.values()} == {"ok"}


@pytest.mark.parametrize(
    ("changed", "name", "state"),
    [
        ({"tokens_per_s": 60_000.0}, "throughput", "warn"),
        ({"tokens_per_s": 60_000.0, "server_limited": True}, "throughput", "ok"),
        ({"tokens_per_s": 10_000.0, "core_share": 1.0, "server_limited": True}, "throughput", "warn"),
        ({"coalesced_share": 0.3}, "throughput", "warn"),
        ({"coalesced_share": 0.3, "server_limited": True}, "throughput", "ok"),
        ({"itl_error_p99_us": 100.0}, "ITL error", "warn"),
        ({"itl_error_p99_us": 8_000.0}, "ITL error", "fail"),
        ({"lag_p99_ms": 2.0}, "dispatch lag", "warn"),
        ({"lag_p99_ms": 6.0}, "dispatch lag", "fail"),
    ],
)
def test_one_thing_wrong_with_the_measured_client(changed: dict[str, object], name: str, state: str) -> None:
    findings = {f.name: f for f in diagnose_capability(msgspec.structs.replace(GOOD_CLIENT, **changed))}
    assert findings.pop(name).state == state
    assert {f.state for f in findings.values()} == {"ok"}


def test_proxy_variables_are_named_and_said_to_be_unused() -> None:
    found = diagnose_machine(msgspec.structs.replace(GOOD_MACHINE, proxies=("HTTPS_PROXY",)))[-1]
    assert (found.state, found.found) == ("ok", "HTTPS_PROXY set, and not used: only --proxy is")


def test_every_fault_says_what_to_do() -> None:
    worst = msgspec.structs.replace(GOOD_MACHINE, fd_hard=100, clock_steps_back=3, cpus=1, load_1m=9.0, memory_available_mb=1, somaxconn=1)
    assert all(f.advice for f in diagnose_machine(worst) if f.state != "ok")


def test_a_whole_cpu_sustains_what_the_used_share_extrapolates_to() -> None:
    assert msgspec.structs.replace(GOOD_CLIENT, tokens_per_s=50_000.0, core_share=0.5).sustainable_tokens_per_s == 100_000.0
