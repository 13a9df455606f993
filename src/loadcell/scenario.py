"""Composes the specs of one load: where, what, when, and for how long. Everything a run needs to be repeated."""

from typing import Any, Literal

from msgspec import Struct

from loadcell.client.limits import Timeouts
from loadcell.endpoint.spec import EndpointSpec
from loadcell.metrics.slo import Slo
from loadcell.schedule import ScheduleSpec
from loadcell.workload.spec import WorkloadSpec

Api = Literal["chat", "completions"]


class TargetSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """Where the load goes. `base_urls` as the user gave them; `endpoint_path` is appended to the base URL as given.

    `model` null: the first of `/v1/models`. `headers` are sent with every request; their values never reach a file.
    `proxy` null: none, whatever the environment says.
    """

    base_urls: tuple[str, ...]
    api: Api = "chat"
    endpoint_path: str | None = None
    model: str | None = None
    served_model_name: str | None = None
    headers: tuple[tuple[str, str], ...] = ()
    api_key_env: str = "OPENAI_API_KEY"
    ca_file: str | None = None
    insecure: bool = False
    proxy: str | None = None


class SamplingSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """Fields of the request body besides prompt and model. `ignore_eos` null: true for random prompts, absent otherwise."""

    stream: bool = True
    temperature: float | None = 0.0
    top_p: float | None = None
    ignore_eos: bool | None = None
    min_tokens: int | None = None
    max_tokens_field: str = "max_tokens"
    extra_body: dict[str, Any] = {}


class Scenario(Struct, frozen=True, forbid_unknown_fields=True):
    """One load from start to end. `drain_s`: how long requests in flight may run on after `duration`."""

    target: TargetSpec
    name: str = "bench"
    schedule: ScheduleSpec = ScheduleSpec()
    workload: WorkloadSpec = WorkloadSpec()
    sampling: SamplingSpec = SamplingSpec()
    endpoint: EndpointSpec = EndpointSpec()
    timeouts: Timeouts = Timeouts()
    warmup_requests: int = 0
    warmup_duration_s: float = 0.0
    workers: int = 1
    seed: int = 0
    max_failures: int | None = None
    ready_check_timeout_s: float = 0.0
    drain_s: float = 60.0
    save_text: bool = False
    slos: tuple[Slo, ...] = ()
    goodput: tuple[Slo, ...] = ()
    devices: int | None = None
    label: str | None = None
    metadata: dict[str, str] = {}
