"""A study's record -> what its answer rests on: parameters, gain, confirmation, limits. Pure."""

import math
from collections.abc import Mapping, Sequence

from loadcell.report.study import Confirmation, Contender, Gain, StudyLimit, StudyParameter
from loadcell.tune.events import Record
from loadcell.tune.outcome import MEASURED, TrialResult
from loadcell.tune.parameters import Configuration, Parameter
from loadcell.tune.space import Space
from loadcell.tune.spec import StudySpec


def measured_of(record: Record, configuration: Configuration | None) -> list[TrialResult]:
    """Measurements of it; where it was measured in confirmation, those alone: a search's best is its luckiest."""
    own = [one for one in record.results.values() if one.outcome in MEASURED and one.configuration == configuration]
    return fresh(own)


def fresh(own: Sequence[TrialResult]) -> list[TrialResult]:
    fresh = [one for one in own if one.kind in ("confirm", "revert")]
    return fresh or list(own)


def mean(values: Sequence[float | None]) -> float | None:
    """Geometric: gains are ratios."""
    logs = [math.log(value) for value in values if value]
    return math.exp(sum(logs) / len(logs)) if logs else None


def parameters(
    spec: StudySpec,
    space: Space,
    record: Record,
    default: Configuration,
    best: Configuration | None,
    importance: Mapping[str, float],
) -> list[StudyParameter]:
    winner = _winner(record)
    put_back = {one.parameter for one in record.reverted if one.accepted} if winner is not None else set()
    return [
        StudyParameter(
            name=one.name,
            place=place_text(one),
            searched=one.name in space.searched,
            default=default.get(one.name),
            best=None if best is None else best.get(one.name),
            changed=best is not None and best.get(one.name) != default.get(one.name),
            importance=importance.get(one.name),
            put_back=winner.get(one.name) if winner is not None and one.name in put_back else None,
        )
        for one in spec.parameter
    ]


def place_text(one: Parameter) -> str:
    """`--max-num-seqs`, `$VLLM_USE_V1`, `config.json: a.b`, `bench --concurrency`."""
    where = one.place
    if where.flag is not None:
        return where.flag
    if where.env is not None:
        return f"${where.env}"
    if where.load is not None:
        return f"bench --{where.load.lstrip('-').replace('_', '-')}"
    if where.path is not None:
        return f"{where.file}: {where.path}" if where.file else where.path
    return f"${one.name} in texts"


def _winner(record: Record) -> Configuration | None:
    """Of the confirmation, before anything was put back."""
    if record.judged is None or record.judged.decision.winner is None or not record.shortlist:
        return None
    return record.shortlist[record.judged.decision.winner - 1]


def gain(record: Record, best: Configuration | None) -> Gain | None:
    winner, closed = _winner(record), record.closed
    if winner is None or record.judged is None or closed is None or closed.announced not in ("winner", "default_fails"):
        return None
    settled = record.settled
    if settled is not None and settled.configuration == best and settled.decision.winner is not None:
        winner, decision = best, settled.decision  # what was left by reverting was measured in rounds itself
    else:
        decision = record.judged.decision
    standing = next(one for one in decision.standings if one.candidate == decision.winner)
    if standing.gain is None:
        return None
    return Gain(standing.gain, _finite(standing.low), _finite(standing.high), before_reverting=best != winner)


def confirmation(record: Record, default: Configuration) -> Confirmation | None:
    judged = record.judged
    if judged is None or record.shortlist is None:
        return None
    contenders = []
    for one in judged.decision.standings:
        configuration = default if one.candidate == 0 else record.shortlist[one.candidate - 1]
        contenders.append(
            Contender(
                candidate=one.candidate,
                configuration=configuration,
                rounds=one.rounds,
                value=one.value,
                gain=one.gain,
                gain_low=_finite(one.low),
                gain_high=_finite(one.high),
                p=one.p if one.candidate else None,
                significant=one.significant,
                died=one.dead,
                limits=dict(one.limits),
            )
        )
    return Confirmation(judged.rounds, judged.ended, contenders)


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def limits_of(limits: Sequence[str], best: Sequence[TrialResult], default: Sequence[TrialResult]) -> list[StudyLimit]:
    shares = {text: _shares(best, text) for text in limits}
    means = {text: mean(values) for text, values in shares.items()}
    known = {text: mean for text, mean in means.items() if mean is not None}
    first = max(known, key=known.__getitem__, default=None)
    return [
        StudyLimit(
            text=text,
            share=means[text],
            highest=max(shares[text], default=None),
            default_share=mean(_shares(fresh(default), text)),
            binding=text == first,
        )
        for text in limits
    ]


def _shares(results: Sequence[TrialResult], limit: str) -> list[float]:
    return [math.exp(margin) for one in results if (margin := one.violations.get(limit)) is not None]
