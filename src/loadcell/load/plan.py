"""What the control process tells a worker, and what a worker tells control. Plain data; times are absolute monotonic ns."""

from typing import Literal

import msgspec
from msgspec import Struct

from loadcell.client.limits import Timeouts
from loadcell.endpoint.spec import EndpointSpec
from loadcell.records import Endpoint, Outcome, Phase
from loadcell.schedule import ScheduleSpec

StopCode = Literal["count", "duration", "max_failures", "interrupt", "terminated", "patience", "fatal", "worker_lost", "called_off"]
STOP_CODES: tuple[StopCode, ...] = (
    "count",
    "duration",
    "max_failures",
    "interrupt",
    "terminated",
    "patience",
    "fatal",
    "worker_lost",
    "called_off",
)


class SpoolFds(Struct, frozen=True):
    """Descriptors of one phase's prepared requests: bodies, their index, the tickets of a closed loop (arrival indices, 4 bytes each)."""

    bodies: int
    index: int
    tickets: int


class WorkerPlan(Struct, frozen=True):
    """Everything a worker needs for one run. `slots`: read and write end of the pipe that holds the free slots of a cap that several
    workers share, else null. `origin_ns`: zero of the records' stamps. `header` is the first line of its part of the log.
    `part` is the path of that part. `headers` hold secrets: this goes through a pipe, never to a file.
    """

    worker: int
    workers: int
    endpoints: list[Endpoint]
    spec: EndpointSpec
    timeouts: Timeouts
    schedule: ScheduleSpec
    seed: int
    headers: list[tuple[str, str]]
    ca_file: str | None
    insecure: bool
    kernel_stamps: bool
    keep_text: bool
    save_text: bool
    origin_ns: int
    header: str
    part: str
    board_fd: int
    warmup: SpoolFds
    measure: SpoolFds
    offsets_fd: int | None
    slots: tuple[int, int] | None
    warmup_concurrency: int


class StartPhase(Struct, frozen=True, tag="start"):
    """Control to worker: begin. Arrivals count from `start_ns`."""

    phase: Phase
    start_ns: int


class Leave(Struct, frozen=True, tag="leave"):
    """Control to worker: the run is over."""


class Ready(Struct, frozen=True, tag="ready"):
    """Worker to control: imported, connected to the board, its part of the log is open."""


class Traffic(Struct, frozen=True, tag="traffic"):
    """Worker to control: a request ended in a way that says something of its endpoint."""

    endpoint: int
    outcome: Outcome
    status: int | None
    retry_after_s: float | None
    error_code: str | None
    dispatched_ns: int
    at_ns: int


class Fatal(Struct, frozen=True, tag="fatal"):
    """Worker to control: an answer after which the run cannot go on."""

    endpoint: int
    text: str


class FieldDropped(Struct, frozen=True, tag="dropped"):
    """Worker to control: an endpoint refused an optional field; it is not sent there again."""

    endpoint: int
    field: str
    said: str


class WorkerReport(Struct, frozen=True):
    """A worker's account of itself. All sampled, in µs: `lag_us` how late it dispatched against what was due, `loop_us` how late its
    loop woke, `unseen_us` how long answers that had ended waited to be seen.
    """

    worker: int
    cpu_s: float
    wall_s: float
    polls: int
    lag_us: list[int]
    loop_us: list[int]
    unseen_us: list[int]
    kernel_reads: int
    clock_reads: int
    starved_ns: int
    tick_ns: int
    uncounted: int


class PhaseDone(Struct, frozen=True, tag="phase_done"):
    """Worker to control: nothing left to send, nothing in flight, all records written."""

    phase: Phase
    report: WorkerReport


class Trouble(Struct, frozen=True, tag="trouble"):
    """Worker to control: it cannot go on (its disk is full, say)."""

    text: str


ToWorker = StartPhase | Leave
FromWorker = Ready | Traffic | Fatal | FieldDropped | PhaseDone | Trouble

encode = msgspec.json.Encoder().encode
decode_to_worker = msgspec.json.Decoder(ToWorker).decode
decode_from_worker = msgspec.json.Decoder(FromWorker).decode
MESSAGE_SIZE = 1 << 20
