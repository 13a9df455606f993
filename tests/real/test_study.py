"""A study over the real server: two parameters, of one a part of the range does not start; one candidate, confirmed in two rounds on fresh services.

The client has a core of its own (`cpus = "apart"`). Where other work keeps it from that core a measurement is void, by rule: such trials are
allowed, must name the client, and are measured once more in the confirmation.
"""

import math
from collections import Counter

import pytest

from loadcell.report.study import Contender
from loadcell.tune.outcome import MEASURED

from .engine import ENVIRONMENT
from .experiment import Place
from .studies import READY_REQUESTS, TunedStudy, study

pytestmark = [pytest.mark.real, pytest.mark.timeout(300, func_only=True)]

SEARCHED, ROUNDS, REQUESTS, WARMUP = 6, 2, 36, 6
FITS, TOO_MUCH = (1, 2), (1024, 2048)
"""GiB of KV cache: no machine that runs these tests has so much memory."""
LIMIT = "success_rate >= 99%"
STUDY = f"""
[study]
name = "real"
seed = 3
budget = {{ trials = {SEARCHED}, launches = {SEARCHED + 2 * ROUNDS + 2} }}
confirm = {{ candidates = 1, min-rounds = {ROUNDS}, max-rounds = {ROUNDS} }}

[bench]
concurrency = 6
num-prompts = {REQUESTS}
warmup-requests = {WARMUP}
input-len = 64
output-len = 24
ignore-eos = true

[[slo]]
metric = "success_rate"
limit = "99%"

[objective]
metric = "throughput"

[[parameter]]
name = "max_num_seqs"
kind = "int"
flag = "--max-num-seqs"
low = 1
high = 8

[[parameter]]
name = "kv_cache_gib"
kind = "int"
env = "VLLM_CPU_KVCACHE_SPACE"
ladder = {list(FITS + TOO_MUCH)}
"""
DEFAULT = {"max_num_seqs": 1, "kv_cache_gib": int(ENVIRONMENT["VLLM_CPU_KVCACHE_SPACE"])}


@pytest.fixture(scope="module")
def tuned(place: Place) -> TunedStudy:
    with study(place, "study", STUDY + place.fleet(args="max-num-seqs = 1")) as begun:
        begun.tune()
        assert begun.exit_code == 0, begun
        return begun


def test_it_comes_to_an_answer(tuned: TunedStudy) -> None:
    found = tuned.found
    assert (found.state, found.in_flight) == ("complete", [])
    assert found.default == DEFAULT
    assert found.trials[0].configuration == DEFAULT
    searched = tuned.trials("default", "known", "fill", "search")
    assert len(searched) == found.spent.trials == SEARCHED
    assert len({tuple(one.configuration.items()) for one in searched}) == SEARCHED
    assert found.spent.launches == len(found.trials)
    for one in found.trials:
        assert one.outcome in MEASURED | {"oom_start", "invalid_measurement"}, one
        if one.outcome == "invalid_measurement":
            assert "client" in (one.evidence or "")
    assert tuned.recorded() == []
    assert "run/report.md" in tuned.out
    assert "run/best.toml" in tuned.out
    assert f"version {found.fingerprint['version']}".removesuffix("+cpu") in tuned.log_of(found.trials[0])


def test_a_cache_that_does_not_fit_is_out_of_memory_with_the_line_that_says_so(tuned: TunedStudy) -> None:
    found = tuned.found
    dead = [one for one in found.trials if one.outcome == "oom_start"]
    assert dead
    assert {one.number for one in dead} == {one.number for one in found.trials if one.configuration["kv_cache_gib"] in TOO_MUCH}
    for one in dead:
        assert (one.phase, one.objective, one.attempts, one.exit_code) == ("launch", None, 1, 1)
        line = f"is less than requested memory for kv ({one.configuration['kv_cache_gib']}.0 GiB)"
        assert line in (one.evidence or "")
        assert line in tuned.log_of(one)
        assert tuned.generations(one) == Counter()
    (failure,) = [one for one in found.failures if one.outcome == "oom_start"]
    assert failure.trials == [one.number for one in dead]
    low, high = failure.ranges["kv_cache_gib"]
    assert TOO_MUCH[0] <= low <= high <= TOO_MUCH[1]
    assert "out of memory at the start" in (tuned.run / "report.md").read_text()


def test_what_died_teaches_where_not_to_search(tuned: TunedStudy) -> None:
    """The fill, which knows nothing yet, has met the region; the search that follows stays out of it."""
    asked = tuned.trials("search")
    assert {one.kind for one in tuned.found.trials if one.outcome == "oom_start"} == {"fill"}
    assert len(asked) == SEARCHED - 3
    assert all(one.configuration["kv_cache_gib"] in FITS for one in asked)


def test_the_candidate_and_the_default_are_measured_in_rounds_on_fresh_services(tuned: TunedStudy) -> None:
    found = tuned.found
    made = tuned.trials("confirm")
    void = [one for one in made if one.outcome == "invalid_measurement"]
    assert found.confirmation is not None
    assert found.confirmation.rounds == ROUNDS, f"void measurements: {len(void)}"
    default, candidate = found.confirmation.contenders
    assert default.configuration == DEFAULT
    assert candidate.configuration != DEFAULT
    for contender in (default, candidate):
        of_its_own = [one for one in made if one.configuration == contender.configuration and one.outcome in MEASURED]
        assert contender.rounds == len(of_its_own) == ROUNDS
    assert len({one.folder for one in found.trials}) == len(found.trials)
    for one in made:
        assert tuned.log_of(one).count("Application startup complete") == 1
    assert not tuned.trials("revert")  # the budget has no room for it


def test_the_answer_is_what_its_own_figures_say(tuned: TunedStudy) -> None:
    found = tuned.found
    assert found.confirmation is not None
    default, candidate = found.confirmation.contenders
    rounds = [(_value(tuned, at, 0), _value(tuned, at, 1)) for at in range(found.confirmation.rounds)]
    gain = math.exp(sum(math.log(mine / its) for its, mine in rounds) / len(rounds)) - 1
    assert candidate.gain == pytest.approx(gain)
    assert candidate.value == pytest.approx(math.exp(sum(math.log(mine) for _, mine in rounds) / len(rounds)))
    report = (tuned.run / "report.md").read_text()
    if _clears(candidate):
        assert found.announced == "winner"
        assert found.best == candidate.configuration
        assert found.gain is not None
        assert found.gain.value == candidate.gain
        assert report.startswith("# BETTER THAN THE DEFAULT")
    else:
        assert found.announced == "no_reliable_improvement"
        assert (found.best, found.gain) == (DEFAULT, None)
        assert report.startswith("# NO RELIABLE IMPROVEMENT")
    assert default.gain is None


def test_only_the_load_asks_for_tokens(tuned: TunedStudy) -> None:
    """By the servers' counters, and by their own access logs."""
    loaded = [one for one in tuned.found.trials if one.outcome in ("ok", "slo_violated")]
    assert len(loaded) >= 2 * ROUNDS
    for one in loaded:
        (purity,) = tuned.summary(one)["purity"]
        assert (purity["state"], purity["counted"], purity["sent"], purity["foreign"]) == ("pure", REQUESTS + WARMUP, REQUESTS + WARMUP, 0)
        assert tuned.generations(one) == {"200": READY_REQUESTS + WARMUP + REQUESTS}
        assert one.margins[LIMIT] == pytest.approx(math.log(0.99))


def test_best_toml_starts_what_was_found(tuned: TunedStudy) -> None:
    found = tuned.found
    assert found.best is not None
    tuned.begin("check", file="run/best.toml")
    tuned.finish()
    assert tuned.exit_code == 0, tuned
    assert f"VLLM_CPU_KVCACHE_SPACE={found.best['kv_cache_gib']} " in tuned.out
    assert f"--max-num-seqs {found.best['max_num_seqs']}\n" in tuned.out
    (service,) = found.launch
    assert service.env["VLLM_CPU_KVCACHE_SPACE"] == str(found.best["kv_cache_gib"])
    assert service.image == f"vllm/vllm-openai:v{(found.fingerprint['version'] or '').removesuffix('+cpu')}"
    if "CPUs" in (found.fingerprint["hardware"] or ""):
        assert (service.devices, service.vendor) == ([], None)


def _value(tuned: TunedStudy, at: int, candidate: int) -> float:
    """Of one round; the second measurement where the first was void."""
    results = tuned.record.results
    tag = f"confirm/{at}/{candidate}"
    value = results.get(f"{tag}/again", results[tag]).objective
    assert value is not None
    return value


def _clears(candidate: Contender) -> bool:
    return candidate.significant and (candidate.gain_low or 0) > 0 and set(candidate.limits.values()) == {"meets"}
