"""The simulated engine's memory and step costs -> response surfaces on which searches are compared, without starting anything.

A configuration's outcome and figures are those of the engine's own model (`sim.memory`, `sim.profile`) in the steady state of a closed loop: what
`sim.model` computes step by step is averaged over steps here (Little's law for decodes and prefills), so that a trial costs 0.1 ms and a dense
search finds the optimum. Three loads on three models, a flat surface, and one whose best configuration is truly 15 % better.

Committed before the sampler was written. Samplers see what `observe` draws; the score is made from `truth`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

import numpy as np

from loadcell.sim.memory import MemoryPlan, StartError
from loadcell.sim.memory import plan_memory as lay_out
from loadcell.sim.profile import StepCost, StepShape, find_profile
from loadcell.sim.spec import SimSpec
from loadcell.tune.outcome import OutcomeName, TrialResult
from loadcell.tune.parameters import Configuration, Constraint, Parameter, Place, Value

TTFT: Final = "ttft_p99"
TPOT: Final = "tpot_p99"
THROUGHPUT: Final = "throughput"
SPACE_DRAWS: Final = 12_000
_SHAKES: Final = 4000


@dataclass(frozen=True)
class Workload:
    """A closed loop of requests on `devices` devices. `shared`: share of a prompt that prefix caching saves. Limits in s; `noise` is relative."""

    name: str
    profile: str
    devices: int
    prompt: int
    output: int
    shared: float
    ttft_s: float
    tpot_s: float
    noise: float
    max_model_len: int
    acceptance: float = 0.7


@dataclass(frozen=True)
class Truth:
    """Without noise. `figures` are empty where the configuration does not survive."""

    outcome: OutcomeName
    figures: dict[str, float] = field(default_factory=dict)
    evidence: str | None = None

    @property
    def alive(self) -> bool:
        return bool(self.figures)


CHAT: Final = Workload("chat", "l40s:qwen2.5-32b", 8, 700, 260, 0.35, 0.6, 0.055, 0.03, 8192)
DOCUMENTS: Final = Workload("documents", "h100:llama-3.3-70b", 8, 5200, 160, 0.05, 3.0, 0.070, 0.02, 16384, 0.6)
REASONING: Final = Workload("reasoning", "l4:llama-3.1-8b", 4, 250, 1800, 0.1, 1.0, 0.080, 0.06, 16384, 0.75)


@lru_cache
def parameters(workload: Workload) -> tuple[Parameter, ...]:
    """Twelve that are searched, and one derived from them."""
    powers = tuple(float(1 << power) for power in range(4) if 1 << power <= workload.devices)

    def flag(name: str) -> Place:
        return Place(flag="--" + name.replace("_", "-"))

    def of(name: str, *choices: Value) -> Parameter:
        return Parameter(name, "categorical", flag(name), choices=choices, default=choices[0])

    return (
        Parameter("max_num_seqs", "int", flag("max_num_seqs"), low=8, high=2048, log=True, default=256),
        Parameter("max_num_batched_tokens", "int", flag("max_num_batched_tokens"), low=512, high=65536, log=True, default=8192),
        Parameter("gpu_memory_utilization", "float", flag("gpu_memory_utilization"), low=0.85, high=0.995, default=0.9),
        Parameter("block_size", "int", flag("block_size"), ladder=(8, 16, 32, 64, 128), default=16),
        Parameter("enable_prefix_caching", "bool", flag("enable_prefix_caching"), default=True),
        Parameter("enable_chunked_prefill", "bool", flag("enable_chunked_prefill"), default=True),
        of("kv_cache_dtype", "auto", "fp8"),
        Parameter("enforce_eager", "bool", flag("enforce_eager"), default=False),
        Parameter("num_speculative_tokens", "int", flag("num_speculative_tokens"), low=0, high=5, default=0),
        of("quantization", "none", "fp8", "awq", "gptq"),
        Parameter("tensor_parallel_size", "int", flag("tensor_parallel_size"), ladder=powers, default=workload.devices),
        Parameter("concurrency", "int", Place(load="concurrency"), low=8, high=2048, log=True, default=64),
        Parameter("data_parallel_size", "int", flag("data_parallel_size"), derived=f"{workload.devices} // tensor_parallel_size"),
    )


@lru_cache
def constraints(workload: Workload) -> tuple[Constraint, ...]:
    """What the engine's adapter knows before a start; what memory allows is for the search to learn."""
    return (
        Constraint("max_num_batched_tokens >= max_num_seqs", repair="max_num_batched_tokens"),
        Constraint(f"enable_chunked_prefill or max_num_batched_tokens >= {workload.max_model_len}", repair="enable_chunked_prefill"),
    )


def steady(workload: Workload, configuration: Configuration) -> Truth:
    """What the engine does with `configuration` in the long run."""
    spec = _spec(workload, configuration)
    batched = int(configuration["max_num_batched_tokens"])
    device, model = find_profile(spec.profile)
    try:
        plan = lay_out(device, model, spec, max_model_len=workload.max_model_len, max_num_batched_tokens=batched)
    except StartError as error:
        return Truth("oom_start", evidence=str(error).splitlines()[1])
    clients = float(configuration["concurrency"]) / spec.data_parallel_size
    peak = min(batched, clients * workload.prompt)  # a closed loop begins with all prompts at once
    if not plan.fits(round(peak), round(min(clients, spec.max_num_seqs))):
        return Truth("oom_load", evidence="torch.OutOfMemoryError: CUDA out of memory")
    return Truth("ok", _figures(workload, spec, plan, StepCost(device, model, spec), batched, clients))


def _figures(workload: Workload, spec: SimSpec, plan: MemoryPlan, cost: StepCost, batched: int, clients: float) -> dict[str, float]:
    drafts, accept = spec.num_speculative_tokens, workload.acceptance
    per_step = sum(accept**k for k in range(drafts + 1))  # Leviathan et al. 2023: tokens of a step with k drafts
    shared = workload.prompt * workload.shared // spec.block_size * spec.block_size if spec.enable_prefix_caching else 0.0
    prefill = workload.prompt - shared
    context = prefill + workload.output / 2 + spec.block_size / 2
    capacity = plan.blocks * spec.block_size - shared
    wanted = min(clients, float(spec.max_num_seqs))
    pressure = wanted * context / capacity
    running = max(1.0, min(wanted, capacity / context))
    again = 0.2 * min(1.0, max(0.0, pressure - 0.9) / 0.3)  # preempted sequences are computed again
    prefill += again * context
    steps = workload.output / per_step

    room = max(1.0, float(batched))
    decoding = running
    for _ in range(8):
        room = max(1.0, batched - decoding * (1 + drafts))
        if not spec.enable_chunked_prefill:
            room = max(prefill, room // prefill * prefill)
        chunks = max(1.0, prefill / room)
        decoding = 0.5 * decoding + 0.5 * min(running / (1 + chunks / steps), batched / (prefill / steps + 1 + drafts))
    arriving = decoding / steps  # requests that begin in a step
    bearing = 1 - math.exp(-arriving * math.ceil(prefill / room))
    chunk = min(room, arriving * prefill / bearing)
    seen = workload.prompt + workload.output / 2
    tokens = decoding * (1 + drafts)
    decode = StepShape(
        tokens=round(tokens), sequences=round(decoding), outputs=round(decoding), attended=round(tokens * seen), context=round(decoding * seen),
        decode_only=True,
    )  # fmt: skip
    mixed = StepShape(
        tokens=round(tokens + chunk), sequences=round(decoding + 1), outputs=round(decoding), decode_only=False,
        attended=round(tokens * seen + chunk * workload.prompt / 2), context=round(decoding * seen + workload.prompt),
    )  # fmt: skip
    plain_s, mixed_s = cost.seconds(decode), cost.seconds(mixed)
    step_s = (1 - bearing) * plain_s + bearing * mixed_s
    requests = decoding / steps / step_s
    busy = min(0.97, arriving * prefill / room)
    spread = 2.33 * math.sqrt(bearing * (1 - bearing) / steps) * (mixed_s - plain_s)
    queue_s = max(0.0, clients - running) / requests
    prefill_s = math.ceil(prefill / room) * mixed_s
    return {
        THROUGHPUT: requests * workload.output * spec.data_parallel_size,
        TTFT: 0.5 * step_s + prefill_s * (1 + 2.3 * busy / (1 - busy) * 0.5) + 1.3 * queue_s + 3 * again * prefill_s,
        TPOT: (step_s + spread) / per_step * (1 + 1.5 * again),
    }


def _spec(workload: Workload, configuration: Configuration) -> SimSpec:
    names = SimSpec.__struct_fields__
    engine = {name: value for name, value in configuration.items() if name in names and name != "max_num_batched_tokens"}
    tensor = int(configuration["tensor_parallel_size"])
    engine |= {"tensor_parallel_size": tensor, "data_parallel_size": max(1, workload.devices // tensor), "profile": workload.profile}
    engine["block_size"] = int(configuration["block_size"])
    return SimSpec(**engine, speculative_acceptance=workload.acceptance)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Surface:
    """What a search is tried on. `limits`: figure -> largest value that is allowed."""

    name: str
    workload: Workload
    limits: dict[str, float]
    noise: float
    truth: Callable[[Configuration], Truth]

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        return parameters(self.workload)

    @property
    def constraints(self) -> tuple[Constraint, ...]:
        return constraints(self.workload)

    def legal(self, configuration: Configuration) -> bool:
        """What `constraints` say."""
        batched, least = int(configuration["max_num_batched_tokens"]), self.workload.max_model_len
        return batched >= int(configuration["max_num_seqs"]) and (bool(configuration["enable_chunked_prefill"]) or batched >= least)

    def value(self, configuration: Configuration) -> float:
        """The true objective; 0 where it does not survive or truly violates a limit."""
        truth = self.truth(configuration)
        if not truth.alive or any(truth.figures[name] > limit for name, limit in self.limits.items()):
            return 0.0
        return truth.figures[THROUGHPUT]

    def observe(self, configuration: Configuration, number: int, rng: np.random.Generator) -> TrialResult:
        """One trial with its noise: a common factor of the run, and one of each tail percentile of its own."""
        truth = self.truth(configuration)
        if not truth.alive:
            return TrialResult(number, configuration, truth.outcome, "launch", launch_s=40.0, evidence=truth.evidence, exit_code=1)
        run = rng.normal(0, self.noise)
        figures: dict[str, float | None] = {THROUGHPUT: truth.figures[THROUGHPUT] * math.exp(run)}
        for name in self.limits:
            figures[name] = truth.figures[name] * math.exp(-0.5 * run + rng.normal(0, 1.2 * self.noise))
        violations: dict[str, float | None] = {name: math.log((figures[name] or 1e-9) / limit) for name, limit in self.limits.items()}
        good = all((violation or 0.0) <= 0 for violation in violations.values())
        return TrialResult(
            number, configuration, "ok" if good else "slo_violated", "report",
            objective=figures[THROUGHPUT], figures=figures, violations=violations, launch_s=70.0, measure_s=60.0, stop_s=5.0,
        )  # fmt: skip


def _flat(configuration: Configuration) -> Truth:
    truth = steady(CHAT, configuration)
    return truth if not truth.alive else Truth("ok", {THROUGHPUT: 5000.0, TTFT: 0.7, TPOT: 0.021})


def _gain(configuration: Configuration) -> Truth:
    """Half of the 15 % lies in the block size, half in the batched tokens, and costs latency that the limits still allow."""
    truth = _flat(configuration)
    if not truth.alive:
        return truth
    octaves = math.log2(float(configuration["max_num_batched_tokens"]) / 8192)
    share = 0.5 * (float(configuration["block_size"]) >= 32) + 0.5 * max(0.0, 1 - abs(octaves - 1.5) / 1.5)
    return Truth("ok", {THROUGHPUT: 5000.0 * 1.15**share, TTFT: 0.7 * 1.1**octaves, TPOT: 0.021})


def surface_of(workload: Workload) -> Surface:
    limits = {TTFT: workload.ttft_s, TPOT: workload.tpot_s}
    return Surface(workload.name, workload, limits, workload.noise, lambda c: steady(workload, c))


LOADS: Final = (CHAT, DOCUMENTS, REASONING)
SURFACES: Final = {surface.name: surface for surface in map(surface_of, LOADS)}
_LOOSE: Final = {TTFT: 1.0, TPOT: 0.030}
FLAT: Final = Surface("flat", CHAT, _LOOSE, 0.04, _flat)
GAIN: Final = Surface("gain of 15 %", CHAT, _LOOSE, 0.04, _gain)
KNOWN: Final = {**SURFACES, FLAT.name: FLAT, GAIN.name: GAIN}


def draw(surface: Surface, rng: np.random.Generator) -> Configuration:
    """One configuration, uniform in every parameter's own scale; derived ones aside."""
    return {one.name: _at(one, float(rng.random())) for one in surface.parameters if one.derived is None}


def _at(one: Parameter, where: float) -> Value:
    """The value of `one` at `where` in [0, 1)."""
    if one.kind == "bool":
        return where >= 0.5
    steps = one.choices or one.ladder
    if steps:
        value = steps[int(where * len(steps))]
        return int(value) if one.kind == "int" else value
    low, high = one.low or 0.0, one.high or 0.0
    value = math.exp(math.log(low) + where * math.log(high / low)) if one.log else low + where * (high - low)
    return round(value) if one.kind == "int" else value


def default(surface: Surface) -> Configuration:
    return {one.name: one.default for one in surface.parameters if one.derived is None and one.default is not None}


@lru_cache(maxsize=32)
def optimum(name: str) -> tuple[float, Configuration]:
    """The best value there is, and where."""
    return max((dense_search(KNOWN[name], seed) for seed in range(3)), key=lambda one: one[0])


def dense_search(surface: Surface, seed: int = 1) -> tuple[float, Configuration]:
    """Draws over the whole space; from the best thirty every parameter is moved through its range, in turn, until none helps; then the best five
    are shaken in two to four parameters at once, and climb again.
    """
    rng = np.random.default_rng(seed)
    drawn = [one for one in (draw(surface, rng) for _ in range(SPACE_DRAWS)) if surface.legal(one)]
    ranked = sorted(((surface.value(one), n) for n, one in enumerate(drawn)), reverse=True)[:30]
    tops = sorted((_climbed(surface, drawn[n], value) for value, n in ranked), key=lambda one: one[0], reverse=True)[:5]
    names = [one.name for one in surface.parameters if one.derived is None]
    for at, (value, one) in enumerate(tops):
        for _ in range(_SHAKES):
            fresh = draw(surface, rng)
            moved = one | {name: fresh[name] for name in rng.choice(names, size=int(rng.integers(2, 5)), replace=False).tolist()}
            if surface.legal(moved) and (got := surface.value(moved)) > value * 1.0001:
                value, one = _climbed(surface, moved, got)
        tops[at] = value, one
    return max(tops, key=lambda one: one[0])


def _climbed(surface: Surface, one: Configuration, value: float) -> tuple[float, Configuration]:
    improving = True
    while improving:
        improving = False
        for parameter in surface.parameters:
            if parameter.derived is not None:
                continue
            for where in np.linspace(0, 0.9999, 33):
                moved = {**one, parameter.name: _at(parameter, float(where))}
                if surface.legal(moved) and (got := surface.value(moved)) > value * 1.0001:
                    one, value, improving = moved, got, True
    return value, one


def shares(surface: Surface, draws: int = 4000) -> dict[str, float]:
    """Outcome -> share of the legal space; `feasible`: truly within every limit."""
    rng = np.random.default_rng(2)
    legal = [one for one in (draw(surface, rng) for _ in range(draws)) if surface.legal(one)]
    counts: dict[str, float] = {}
    for one in legal:
        outcome = surface.truth(one).outcome
        if outcome == "ok":
            outcome = "ok" if surface.value(one) else "slo_violated"
        counts[outcome] = counts.get(outcome, 0.0) + 1 / len(legal)
    return counts
