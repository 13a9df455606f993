"""A scenario -> everything that must be known before the first request: endpoints with addresses, model, tokenizer, prompts, arrivals.

What is wrong with the input is raised here, before a file or a process is made.
"""

import math
import os
import resource
from array import array
from bisect import bisect_right
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from loadcell.client.resolve import resolve
from loadcell.client.tokenize import ServerTokenizer
from loadcell.clock import NS_PER_S, MonotonicClock
from loadcell.errors import UserError
from loadcell.probe import discover_model, wait_ready
from loadcell.records import Endpoint, Request
from loadcell.scenario import Scenario, TargetSpec
from loadcell.schedule import ScheduleSpec, arrivals, mode
from loadcell.schedule import validate as validate_schedule
from loadcell.wire.bodies import Sampling, chat_body, completions_body
from loadcell.wire.url import any_address_notice, parse_endpoint
from loadcell.workload import Prompt, Purpose, Tokenizer, WordTokenizer, Workload, local_tokenizer, open_workload
from loadcell.workload import validate as validate_workload

if TYPE_CHECKING:
    import ssl

_SPARE_DESCRIPTORS = 128
_MODELS_TIMEOUT_S = 10.0
_WARMUP_CONCURRENCY = 16


class Target(Struct, frozen=True):
    """Who is asked, and with what. `headers` hold secrets; `notices` are said to the user and stand in the report."""

    endpoints: list[Endpoint]
    headers: list[tuple[str, str]]
    tls: "ssl.SSLContext | None"
    kernel_stamps: bool
    notices: list[str]


class Load(Struct, frozen=True):
    """What is asked and when. `offsets`: ns from the start, null for a closed loop; `schedule` is the scenario's, with a trace filled in."""

    model: str
    tokenizer: Tokenizer
    workload: Workload
    schedule: ScheduleSpec
    offsets: "array[int] | None"
    warmup_concurrency: int

    def first_wave(self) -> int:
        """How many requests must be ready before the start: a closed loop's slots, or what is due in its first second."""
        if self.offsets is None:
            return self.schedule.concurrency or 1
        return max(1, bisect_right(self.offsets, NS_PER_S))

    def close(self) -> None:
        """Leave the server's tokenizer alone, where that is the one."""
        _close(self.tokenizer)


def _close(tokenizer: Tokenizer) -> None:
    if isinstance(tokenizer, ServerTokenizer):
        tokenizer.close()


def find_target(scenario: Scenario, *, kernel_stamps: bool) -> Target:
    """Parse and resolve the endpoints, make the TLS context, raise the descriptor limit. Raises UserError."""
    given = scenario.target
    validate_schedule(scenario.schedule)
    validate_workload(scenario.workload)
    notices = [notice for url in given.base_urls if (notice := any_address_notice(url))]
    endpoints = [
        resolve(parse_endpoint(url, given.api, given.endpoint_path, index, given.proxy)) for index, url in enumerate(given.base_urls)
    ]
    names = [endpoint.name for endpoint in endpoints]
    if len(set(names)) < len(names):
        endpoints = [
            replace(endpoint, name=f"{endpoint.name}{endpoint.target}") if names.count(endpoint.name) > 1 else endpoint
            for endpoint in endpoints
        ]
    if len({endpoint.name for endpoint in endpoints}) < len(endpoints):
        raise UserError(f"--base-url: {', '.join(sorted(set(names)))} is given more than once; name each endpoint once")
    context = _tls(given) if any(endpoint.scheme == "https" for endpoint in endpoints) else None
    if given.insecure and context is not None:
        notices.append("certificates were not verified (--insecure)")
    notices += [f"{endpoint.name}: the name does not resolve" for endpoint in endpoints if not endpoint.addresses]
    notices += [
        f"{endpoint.name}: requests go through the proxy {_without_user(endpoint.proxy)}" for endpoint in endpoints if endpoint.proxy
    ]
    _raise_descriptor_limit(scenario)
    if not kernel_stamps:
        notices.append("this kernel does not stamp received data: arrivals are stamped by the client's own clock")
    return Target(endpoints, list(given.headers), context, kernel_stamps, notices)


def _tls(given: TargetSpec) -> "ssl.SSLContext":
    from loadcell.client import tls  # OpenSSL takes a while to load

    return tls.context(given.ca_file, given.insecure)


def prepare_load(scenario: Scenario, target: Target) -> Load:
    """Wait for readiness where asked, find the model, open tokenizer and data set, compute the arrivals. Raises UserError, EnvironmentFailure."""
    if scenario.ready_check_timeout_s > 0:
        wait_ready(
            target.endpoints,
            scenario.ready_check_timeout_s,
            MonotonicClock(),
            health_path=scenario.endpoint.health_path,
            headers=target.headers,
            tls=target.tls,
        )
    given = scenario.target
    model = given.model or given.served_model_name or discover_model(target.endpoints, _MODELS_TIMEOUT_S, target.headers, target.tls)
    served = given.served_model_name or model
    tokenizer = _tokenizer(scenario, target, served)
    try:
        workload = open_workload(scenario.workload, tokenizer, given.api == "chat", _needed(scenario))
    except BaseException:
        _close(tokenizer)
        raise
    schedule = scenario.schedule
    if workload.trace_s and schedule.trace_s:
        schedule = replace(schedule, trace_s=workload.trace_s)  # the data set's own times, without those of rows that were left out
    offsets = None if mode(schedule) == "closed" else arrivals(schedule, scenario.seed)
    warmup = scenario.schedule.concurrency or min(_WARMUP_CONCURRENCY, max(1, scenario.warmup_requests))
    return Load(served, tokenizer, workload, schedule, offsets, warmup)


def _needed(scenario: Scenario) -> int | None:
    """How many prompts the run asks for; null where only its duration tells, or its data set's own times."""
    schedule = scenario.schedule
    if schedule.num_prompts is not None or schedule.trace_s or mode(schedule) == "closed":
        return schedule.num_prompts
    return len(arrivals(schedule, scenario.seed))


def closed_count(scenario: Scenario, load: Load) -> int | None:
    """How many requests a closed loop may draw at the most: what was asked for, and no prompt twice where that was forbidden."""
    most = [
        count for count in (scenario.schedule.num_prompts, None if scenario.workload.reuse else load.workload.size) if count is not None
    ]
    return min(most, default=None)


def request_of(scenario: Scenario, model: str, prompt: Prompt, index: int) -> Request:
    """Serialise one request. `ignore_eos` is implied by random prompts, so that their output length is what was asked for."""
    wanted = scenario.sampling
    ignore_eos = wanted.ignore_eos
    if ignore_eos is None and scenario.workload.dataset == "random":
        ignore_eos = True
    sampling = Sampling(
        max_tokens=prompt.output_len,
        max_tokens_field=wanted.max_tokens_field,
        temperature=wanted.temperature,
        top_p=wanted.top_p,
        ignore_eos=ignore_eos or None,
        min_tokens=wanted.min_tokens,
        stream=wanted.stream,
        extra=wanted.extra_body,
    )
    if scenario.target.api == "chat":
        body = chat_body(model, prompt.messages if prompt.messages is not None else prompt.text or "", sampling)
    else:
        body = completions_body(model, prompt.text or "", sampling)
    return Request(
        index=index,
        body=body,
        stream=bool(wanted.extra_body.get("stream", wanted.stream)),
        input_tokens=prompt.input_tokens,
        input_source=prompt.input_source,
        output_asked=prompt.output_len,
        session=prompt.session,
    )


def make_request(scenario: Scenario, load: Load, purpose: Purpose, index: int) -> Request:
    return request_of(scenario, load.model, load.workload.prompt(index, purpose), index)


def _tokenizer(scenario: Scenario, target: Target, model: str) -> Tokenizer:
    """`auto`: the server's if it answers, else words."""
    name = scenario.workload.tokenizer
    if name in ("auto", "server"):
        for endpoint in target.endpoints:
            server = ServerTokenizer(endpoint, model, headers=target.headers, tls=target.tls)
            if endpoint.addresses and server.answers():
                return server
            server.close()
        if name == "server":
            raise UserError("--tokenizer server: no endpoint answers POST /tokenize; give a PATH to tokenizer.json, or words")
        return WordTokenizer()
    return local_tokenizer(name)


def descriptors_needed(schedule: ScheduleSpec) -> int | None:
    """Connections at the most; null where nothing bounds them."""
    if schedule.concurrency is not None:
        return schedule.concurrency
    return schedule.num_prompts if mode(schedule) == "at_once" else None


def _raise_descriptor_limit(scenario: Scenario) -> None:
    """Soft limit to the hard one, which has to be enough."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard or soft == resource.RLIM_INFINITY:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    refuse_too_many_connections(scenario)


def refuse_too_many_connections(scenario: Scenario) -> None:
    """Refuse what cannot fit rather than count a mass of EMFILE as the server's failures."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    connections = descriptors_needed(scenario.schedule)
    if connections is None or hard == resource.RLIM_INFINITY:
        return
    needed = math.ceil(connections / max(1, scenario.workers)) + _SPARE_DESCRIPTORS
    if needed > hard:
        raise UserError(
            f"--concurrency {connections} needs {needed} file descriptors and the hard limit is {hard}:"
            f" raise it (ulimit -Hn {needed}) or ask for less"
        )


def _without_user(proxy: str | None) -> str:
    return (proxy or "").rpartition("@")[2] or (proxy or "")


def cpus() -> int:
    """Cores that this process may use: the affinity mask, not the machine."""
    return len(os.sched_getaffinity(0))
