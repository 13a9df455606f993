"""Facts of the machine and of the measured client -> one `Finding` each, with what to do. Pure: tables of thresholds.

`fail` means that measurements made here are not to be trusted; `warn` that they are limited in a way the user should know.
"""

from collections.abc import Callable
from typing import Final, Literal

from msgspec import Struct

from loadcell.cli.capability import Capability
from loadcell.cli.machine import MachineFacts

State = Literal["ok", "warn", "fail"]

# A client is INVALID from a lag p99 of 5 ms on, so a machine that sleeps or sends that late cannot give a valid run.
LAG_FAIL_MS: Final = 5.0
LAG_WARN_MS: Final = 1.2
SLEEP_WARN_US: Final = 1_000.0
ITL_ERROR_WARN_US: Final = 60.0
ITL_ERROR_FAIL_US: Final = 5_000.0
FILES_WARN: Final = 4_096
FILES_FAIL: Final = 256
FILES_RESERVED: Final = 64
PORTS_WARN: Final = 10_000
TIME_WAIT_S: Final = 60  # fixed in the kernel, whatever tcp_fin_timeout says
STEAL_WARN, STEAL_FAIL = 0.01, 0.05
MEMORY_WARN_MB: Final = 1_024
TOKENS_WARN: Final = 20_000.0
SHORTFALL: Final = 0.95
COALESCED_WARN: Final = 0.05
FAST_CLOCKS: Final = ("tsc", "kvm-clock", "arch_sys_counter", "hyperv_clocksource_tsc_page")


class Finding(Struct, frozen=True):
    """`found` holds the figures; `advice` is null when there is nothing to do."""

    name: str
    state: State
    found: str
    advice: str | None = None


def diagnose_machine(facts: MachineFacts) -> list[Finding]:
    return [check(facts) for check in MACHINE_CHECKS]


def diagnose_capability(measured: Capability) -> list[Finding]:
    return [check(measured) for check in CAPABILITY_CHECKS]


def _files(facts: MachineFacts) -> Finding:
    streams = max(0, facts.fd_hard - FILES_RESERVED)
    found = f"{facts.fd_soft:,} soft, {facts.fd_hard:,} hard: up to {streams:,} streams per worker (the soft limit is raised by itself)"
    state: State = "fail" if facts.fd_hard < FILES_FAIL else "warn" if facts.fd_hard < FILES_WARN else "ok"
    return Finding(
        "file descriptors", state, found, None if state == "ok" else "raise the hard limit: `ulimit -Hn 65536` as root, or limits.conf"
    )


def _ports(facts: MachineFacts) -> Finding:
    if facts.port_low is None or facts.port_high is None:
        return Finding("local ports", "warn", "the range is not told", "is /proc mounted?")
    count = facts.port_high - facts.port_low + 1
    found = (
        f"{facts.port_low}–{facts.port_high}: {count:,} connections to one address at once, "
        f"{count // TIME_WAIT_S:,} new ones a second where connections are not kept"
    )
    if count >= PORTS_WARN:
        return Finding("local ports", "ok", found)
    return Finding("local ports", "warn", found, "widen it: sysctl -w net.ipv4.ip_local_port_range='1024 65535'")


def _clock(facts: MachineFacts) -> Finding:
    found = (
        f"{facts.clock_source or 'unknown source'}, resolution {facts.clock_resolution_ns:,} ns, a read takes {facts.clock_read_ns:,} ns"
    )
    if facts.clock_steps_back or facts.clock_resolution_ns > 1_000:
        advice = "gaps between tokens cannot be told on this clock: measure from another machine"
        return Finding("clock", "fail", found + (f", went back {facts.clock_steps_back} times" if facts.clock_steps_back else ""), advice)
    if facts.clock_read_ns > 1_000 or facts.clock_source not in (None, *FAST_CLOCKS):
        return Finding("clock", "warn", found, "a slow clock source costs CPU at every token: choose tsc, if this machine's is stable")
    return Finding("clock", "ok", found)


def _sleep(facts: MachineFacts) -> Finding:
    slack = "" if facts.timer_slack_ns is None else f"; timer slack {facts.timer_slack_ns:,} ns, set to 1 ns while loading"
    found = f"a sleep ends {facts.sleep_late_p50_us:.0f} µs late (p50), {facts.sleep_late_p99_us:.0f} µs (p99){slack}"
    advice = "something else uses the CPUs: stop it, or pin it elsewhere"
    if facts.sleep_late_p99_us > LAG_FAIL_MS * 1e3:
        return Finding("sleep", "fail", found, advice)
    return Finding("sleep", "warn", found, advice) if facts.sleep_late_p99_us > SLEEP_WARN_US else Finding("sleep", "ok", found)


def _stamps(facts: MachineFacts) -> Finding:
    if facts.stamp_age_us is None:
        advice = "stamps come from the clock after the read: keep the client's CPU below 90 %, with more --workers"
        return Finding("kernel receive stamps", "warn", "absent (SO_TIMESTAMPNS gave none on loopback)", advice)
    return Finding("kernel receive stamps", "ok", f"present; {facts.stamp_age_us:.1f} µs old at the read (median, loopback)")


def _drain(facts: MachineFacts) -> Finding:
    if facts.drain == "compiled":
        return Finding("drain", "ok", "compiled: sockets are read in C")
    advice = "a token costs about a quarter more CPU; stamps are the same: install a C compiler and Python's headers, then loadcell again"
    return Finding("drain", "warn", "Python: there was no compiler when this was installed", advice)


def _cpus(facts: MachineFacts) -> Finding:
    found = f"{facts.cpus} of {facts.cpus_of_machine} by the affinity mask"
    if facts.cpu_quota is not None:
        found += f", {facts.cpu_quota:g} by the cgroup's quota"
        if facts.cpu_quota < facts.cpus:
            advice = "a quota stops the client in the middle of a load: give it whole CPUs (cpuset) instead"
            return Finding("CPUs", "fail" if facts.cpu_quota < 1 else "warn", found, advice)
    if facts.cpus < 2:
        return Finding("CPUs", "warn", found, "one CPU serves the client and everything else: allow it two")
    return Finding("CPUs", "ok", f"{found}: --workers up to {facts.cpus - 1} leaves one for the rest")


def _load(facts: MachineFacts) -> Finding:
    found = f"load average {facts.load_1m:.2f}"
    if facts.steal_share is not None:
        found += f", {facts.steal_share:.1%} of the CPU time stolen since boot"
        if facts.steal_share > STEAL_WARN:
            advice = "the host of this virtual machine is overbooked: stamps of the kernel stay right only while it runs"
            return Finding("load", "fail" if facts.steal_share > STEAL_FAIL else "warn", found, advice)
    if facts.load_1m > 0.7 * facts.cpus:
        return Finding("load", "warn", found, "other work runs here: stop it before measuring")
    return Finding("load", "ok", found)


def _memory(facts: MachineFacts) -> Finding:
    if facts.memory_available_mb is None:
        return Finding("memory", "warn", "not told", "is /proc mounted?")
    found = f"{facts.memory_available_mb:,} MB available"
    if facts.memory_available_mb < MEMORY_WARN_MB:
        return Finding("memory", "warn", found, "a client that swaps stops: free some")
    return Finding("memory", "ok", found)


def _tcp(facts: MachineFacts) -> Finding:
    def shown(value: int | None) -> str:
        return "unknown" if value is None else str(value)

    found = (
        f"tcp_fin_timeout {shown(facts.fin_timeout_s)} s, tcp_tw_reuse {shown(facts.tw_reuse)}, somaxconn {shown(facts.somaxconn)} "
        "(the last limits servers on this machine)"
    )
    if facts.somaxconn is not None and facts.somaxconn < 1_024:
        return Finding("TCP", "warn", found, "a local server refuses bursts of connections: sysctl -w net.core.somaxconn=4096")
    return Finding("TCP", "ok", found)


def _proxies(facts: MachineFacts) -> Finding:
    if not facts.proxies:
        return Finding("proxies", "ok", "none set in the environment")
    return Finding("proxies", "ok", f"{', '.join(facts.proxies)} set, and not used: only --proxy is")


MACHINE_CHECKS: Final[tuple[Callable[[MachineFacts], Finding], ...]] = (
    _files,
    _ports,
    _clock,
    _sleep,
    _stamps,
    _drain,
    _cpus,
    _load,
    _memory,
    _tcp,
    _proxies,
)


def _start(measured: Capability) -> Finding:
    return Finding("start", "ok", f"{measured.start_s:.2f} s from the command to the first request")


def _cpu_per_token(measured: Capability) -> Finding:
    return Finding("CPU per token", "ok", f"{measured.cpu_us_per_token:.1f} µs at {measured.steady_streams} streams of 50 tokens/s")


def _tokens(measured: Capability) -> Finding:
    found = (
        f"{measured.tokens_per_s:,.0f} tokens/s on {measured.full_streams:,} streams taken of {measured.offered_tokens_per_s:,.0f} sent, "
        f"with {measured.core_share:.0%} of a CPU: about {measured.sustainable_tokens_per_s:,.0f} tokens/s per worker, "
        f"or {measured.sustainable_tokens_per_s / 50:,.0f} streams of 50 tokens/s"
    )
    if measured.server_limited:
        found += " (at least: the replay server was the limit)"
    short = measured.tokens_per_s < SHORTFALL * measured.offered_tokens_per_s and not measured.server_limited
    if short or measured.sustainable_tokens_per_s < TOKENS_WARN:
        return Finding("throughput", "warn", found, "above that, use more --workers, one for each free CPU")
    if measured.coalesced_share > COALESCED_WARN and not measured.server_limited:
        advice = f"{measured.coalesced_share:.0%} of the tokens shared a read with a later one, so their stamps are upper bounds: use more --workers"
        return Finding("throughput", "warn", found, advice)
    return Finding("throughput", "ok", found)


def _itl_error(measured: Capability) -> Finding:
    found = f"p50 {measured.itl_error_p50_us:.1f} µs, p99 {measured.itl_error_p99_us:.1f} µs against the server's own send times"
    if measured.itl_error_p99_us > ITL_ERROR_FAIL_US:
        return Finding("ITL error", "fail", found, "gaps between tokens are wrong here: free a CPU for the client")
    if measured.itl_error_p99_us > ITL_ERROR_WARN_US:
        return Finding("ITL error", "warn", found, "the machine is busy, or gives no kernel stamps: gaps are this much off")
    return Finding("ITL error", "ok", found)


def _lag(measured: Capability) -> Finding:
    found = f"p50 {measured.lag_p50_ms:.2f} ms, p99 {measured.lag_p99_ms:.2f} ms at 1,000 requests/s"
    if measured.lag_p99_ms > LAG_FAIL_MS:
        return Finding("dispatch lag", "fail", found, "requests leave too late for a valid run: stop other work, or lower the rate")
    if measured.lag_p99_ms > LAG_WARN_MS:
        return Finding("dispatch lag", "warn", found, "other work delays the client: stop it before measuring")
    return Finding("dispatch lag", "ok", found)


CAPABILITY_CHECKS: Final[tuple[Callable[[Capability], Finding], ...]] = (_start, _cpu_per_token, _tokens, _itl_error, _lag)
