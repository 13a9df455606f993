"""What this machine allows a client: a few reads of /proc and one loopback connection -> `MachineFacts`.

Knows no thresholds; `diagnosis` judges. A fact that the system does not tell is null.
"""

import os
import resource
import select
import socket
import struct
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from msgspec import Struct

from loadcell.client.sweep import DRAIN
from loadcell.clock import MonotonicClock, realtime_offset_ns

PROXY_VARIABLES: Final = ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
_SO_TIMESTAMPNS: Final = 35
_SLEEPS: Final = 200
_STAMPED_READS: Final = 50
_NS_PER_MS: Final = 1_000_000


class MachineFacts(Struct, frozen=True):
    """`cpus` by the affinity mask, `cpu_quota` in CPUs of the cgroup. `sleep_late`: how late a sleep of 1 ms ends.

    `stamp_age_us`: median age of a loopback packet's kernel stamp at its read; null when the kernel gives none.
    `drain`: "compiled", or "python" where this was installed without a compiler. `steal_share`: CPU time that the hypervisor gave to others since boot.
    """

    fd_soft: int
    fd_hard: int
    port_low: int | None
    port_high: int | None
    fin_timeout_s: int | None
    tw_reuse: int | None
    somaxconn: int | None
    clock_source: str | None
    clock_resolution_ns: int
    clock_read_ns: int
    clock_steps_back: int
    timer_slack_ns: int | None
    sleep_late_p50_us: float
    sleep_late_p99_us: float
    stamp_age_us: float | None
    drain: str
    cpus: int
    cpus_of_machine: int
    cpu_quota: float | None
    load_1m: float
    steal_share: float | None
    memory_available_mb: int | None
    proxies: tuple[str, ...]


def read_machine(environment: Mapping[str, str]) -> MachineFacts:
    """Takes about a third of a second, most of it asleep."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    ports = _numbers("/proc/sys/net/ipv4/ip_local_port_range")
    late_us = _sleep_lateness_us()
    read_ns, steps_back = _clock_reads()
    return MachineFacts(
        fd_soft=soft,
        fd_hard=hard,
        port_low=ports[0] if ports else None,
        port_high=ports[1] if ports else None,
        fin_timeout_s=_number("/proc/sys/net/ipv4/tcp_fin_timeout"),
        tw_reuse=_number("/proc/sys/net/ipv4/tcp_tw_reuse"),
        somaxconn=_number("/proc/sys/net/core/somaxconn"),
        clock_source=_text("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
        clock_resolution_ns=round(time.get_clock_info("monotonic").resolution * 1e9),
        clock_read_ns=read_ns,
        clock_steps_back=steps_back,
        timer_slack_ns=_number("/proc/self/timerslack_ns"),
        sleep_late_p50_us=late_us[len(late_us) // 2],
        sleep_late_p99_us=late_us[int(len(late_us) * 0.99)],
        stamp_age_us=kernel_stamp_age_us(),
        drain=DRAIN,
        cpus=len(os.sched_getaffinity(0)),
        cpus_of_machine=os.cpu_count() or 1,
        cpu_quota=_cpu_quota(),
        load_1m=os.getloadavg()[0],
        steal_share=_steal_share(),
        memory_available_mb=_memory_available_mb(),
        proxies=tuple(name for name in PROXY_VARIABLES if environment.get(name)),
    )


def kernel_stamp_age_us() -> float | None:
    """Sends single bytes over loopback and compares each kernel receive stamp with the clock at the read; null when there is none."""
    ages = []
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname(), timeout=5) as sender:
        receiver, _ = listener.accept()
        with receiver:
            receiver.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
            offset_ns = realtime_offset_ns()
            for _ in range(_STAMPED_READS):
                sender.sendall(b".")
                select.select([receiver], [], [], 5)
                _, control, _, _ = receiver.recvmsg(16, 128)
                read_ns = time.monotonic_ns()
                for level, kind, data in control:
                    if level == socket.SOL_SOCKET and kind == _SO_TIMESTAMPNS:
                        seconds, nanoseconds = struct.unpack("qq", data)
                        ages.append((read_ns - (seconds * 1_000_000_000 + nanoseconds - offset_ns)) / 1e3)
    # Stamping is switched on lazily: the first packets of a host's first user may come without
    return sorted(ages)[len(ages) // 2] if len(ages) > _STAMPED_READS // 2 else None


def _sleep_lateness_us() -> list[float]:
    clock, late = MonotonicClock(), []
    due_ns = clock.now_ns()
    for _ in range(_SLEEPS):
        due_ns = max(due_ns, clock.now_ns()) + _NS_PER_MS
        clock.sleep_until(due_ns)
        late.append((clock.now_ns() - due_ns) / 1e3)
    return sorted(late)


def _clock_reads(count: int = 20_000) -> tuple[int, int]:
    """(ns that one read takes, how often the clock went back)."""
    back, first = 0, time.monotonic_ns()
    last = first
    for _ in range(count):
        now = time.monotonic_ns()
        back += now < last
        last = now
    return (last - first) // count, back


def _text(path: str) -> str | None:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return None


def _numbers(path: str) -> list[int] | None:
    text = _text(path)
    return [int(word) for word in text.split()] if text else None


def _number(path: str) -> int | None:
    numbers = _numbers(path)
    return numbers[0] if numbers else None


def _cpu_quota() -> float | None:
    """CPUs that the cgroup may use: version 2's cpu.max, else version 1's quota and period."""
    text = _text("/sys/fs/cgroup/cpu.max")
    if text is None:
        quota, period = _number("/sys/fs/cgroup/cpu/cpu.cfs_quota_us"), _number("/sys/fs/cgroup/cpu/cpu.cfs_period_us")
        return quota / period if quota and period and quota > 0 else None
    limit, period_text = text.split()
    return None if limit == "max" else int(limit) / int(period_text)


def _steal_share() -> float | None:
    text = _text("/proc/stat")
    if text is None:
        return None
    ticks = [int(word) for word in text.splitlines()[0].split()[1:9]]
    total = sum(ticks)
    return ticks[7] / total if len(ticks) == 8 and total else None


def _memory_available_mb() -> int | None:
    for line in (_text("/proc/meminfo") or "").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) // 1024
    return None
