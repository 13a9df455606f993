"""Searches compared on `surfaces`: how much of the optimum the best truly feasible configuration reaches after 10, 20, 30 and 50 trials.

    python benchmarks/tuning.py [--seeds 20] [--trials 50] [--surfaces chat,documents,reasoning] [--samplers model,tpe,qmc,random,pso]
        [--load parameter|sought] [--output FILE]

All samplers go through `told`, as in a study: the default first, the same repairs, crashes told as pruned, duplicates answered from the record
(they cost no trial). Noise derives from the seed and the configuration, so that samplers that try the same see the same. Intervals are 95 % t
intervals over (surface, seed) pairs; differences are paired by them.
"""

import argparse
import json
import math
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from scipy.stats import t as student

sys.path.insert(0, str(Path(__file__).parent))
import surfaces
from loadcell.seeds import derive
from loadcell.tune.outcome import TEACHES_DEATH, TrialResult
from loadcell.tune.sampler import SearchSpec, make_sampler, told
from loadcell.tune.space import Space
from sought import Sought

AT = (10, 20, 30, 50)
_MOST_REPEATS = 400  # proposals in all that may be duplicates or illegal, before a run ends early


def run(known: surfaces.Surface, sampler: str, seed: int, trials: int, load: str = "parameter") -> dict[str, Any]:
    """One search. `best`: true share of the optimum after each trial; `crashes` after each; `cpu_s` of asking, all told."""
    optimum, _ = surfaces.optimum(known.name) if known.name in surfaces.KNOWN else surfaces.dense_search(known)
    surface = Sought(known) if load == "sought" else known
    space = Space(surface.parameters, surface.constraints)
    limits = tuple(surface.limits)
    study = optuna.create_study(sampler=make_sampler(sampler, SearchSpec(space, derive(seed, "search"), limits)), direction="maximize")
    record: dict[str, TrialResult] = {}
    best: list[float] = []
    crashes: list[int] = []
    repeats, cpu = 0, 0.0
    while len(best) < trials and repeats < _MOST_REPEATS:
        began = time.process_time()
        asked = told.ask(study, space)
        cpu += time.process_time() - began
        if asked.configuration is None:
            told.pass_over(study, asked.trial)
            if asked.exhausted:
                break
            repeats += 1
            continue
        key = space.key(asked.configuration)
        if key in record:
            told.tell(study, asked.trial, record[key])
            repeats += 1
            continue
        result = surface.observe(asked.configuration, len(best), np.random.default_rng(derive(seed, "noise", key)))
        record[key] = result
        told.tell(study, asked.trial, result)
        best.append(max(best[-1] if best else 0.0, surface.value(asked.configuration) / optimum))
        crashes.append((crashes[-1] if crashes else 0) + (result.outcome in TEACHES_DEATH))
    best = [round(one, 4) for one in best + [best[-1]] * (trials - len(best))]
    crashes += [crashes[-1]] * (trials - len(crashes))
    return {
        "surface": surface.name,
        "sampler": sampler,
        "seed": seed,
        "best": best,
        "crashes": crashes,
        "cpu_s": round(cpu, 3),
        "repeats": repeats,
    }


def interval(values: list[float]) -> tuple[float, float]:
    """Mean and half the width of its 95 % t interval."""
    n = len(values)
    if n < 2:
        return float(np.mean(values)), math.nan
    return float(np.mean(values)), float(student.ppf(0.975, n - 1) * np.std(values, ddof=1) / math.sqrt(n))


def table(rows: list[dict[str, Any]], first: str = "model") -> str:
    """Markdown: scores at each count of trials, crashes and CPU; then `first` less each other sampler, paired."""
    samplers = list(dict.fromkeys(row["sampler"] for row in rows))
    trials = min(len(row["best"]) for row in rows)
    at = [count for count in AT if count <= trials] or [trials]
    crashes_at = min(30, trials)
    lines = ["| sampler | " + " | ".join(f"{count} trials" for count in at) + f" | crashes of {crashes_at} | CPU-s asking |"]
    lines.append("| --- |" + " --- |" * (len(at) + 2))
    for sampler in samplers:
        own = [row for row in rows if row["sampler"] == sampler]
        cells = ["{:.3f} ± {:.3f}".format(*interval([row["best"][count - 1] for row in own])) for count in at]
        dead = "{:.1f} ± {:.1f}".format(*interval([float(row["crashes"][crashes_at - 1]) for row in own]))
        lines.append(
            f"| {sampler} | " + " | ".join(cells) + f" | {dead} | {np.mean([row['cpu_s'] for row in own]):.2f} ({trials} trials) |"
        )
    by = {(row["sampler"], row["surface"], row["seed"]): row for row in rows}
    lines += ["", f"| {first} less | " + " | ".join(f"{count} trials" for count in at) + " |", "| --- |" + " --- |" * len(at)]
    for sampler in samplers:
        if sampler == first:
            continue
        cells = []
        for count in at:
            differences = [
                row["best"][count - 1] - by[sampler, row["surface"], row["seed"]]["best"][count - 1]
                for row in rows
                if row["sampler"] == first and (sampler, row["surface"], row["seed"]) in by
            ]
            cells.append("{:+.3f} ± {:.3f}".format(*interval(differences)) if differences else "")
        lines.append(f"| {sampler} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def by_surface(rows: list[dict[str, Any]]) -> str:
    names = list(dict.fromkeys(row["surface"] for row in rows))
    trials = min(30, *(len(row["best"]) for row in rows))
    lines = [f"| at {trials} trials | " + " | ".join(names) + " |", "| --- |" + " --- |" * len(names)]
    for sampler in dict.fromkeys(row["sampler"] for row in rows):
        cells = []
        for name in names:
            own = [row["best"][trials - 1] for row in rows if row["sampler"] == sampler and row["surface"] == name]
            cells.append("{:.3f} ± {:.3f}".format(*interval(own)) if own else "")
        lines.append(f"| {sampler} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--trials", type=int, default=50)
    parser.add_argument("--surfaces", default=",".join(surfaces.SURFACES))
    parser.add_argument(
        "--load",
        choices=("parameter", "sought"),
        default="parameter",
        help="the concurrency is searched, or each trial looks for the largest",
    )
    parser.add_argument("--samplers", default="model,tpe,qmc,random,pso")
    parser.add_argument("--output", type=Path, help="append every run as a JSON line")
    parser.add_argument("--read", type=Path, nargs="+", help="print the tables of such files instead")
    options = parser.parse_args()
    if options.read:
        told_rows = [json.loads(line) for path in options.read for line in path.read_text().splitlines()]
        print(table(told_rows), by_surface(told_rows), sep="\n\n")
        return
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    rows = []
    for seed in range(options.first_seed, options.first_seed + options.seeds):
        for name in options.surfaces.split(","):
            for sampler in options.samplers.split(","):
                rows.append(run(surfaces.KNOWN[name], sampler, seed, options.trials, options.load))
                if options.output is not None:
                    with options.output.open("a") as out:
                        out.write(json.dumps(rows[-1]) + "\n")
    print(table(rows), by_surface(rows), sep="\n\n")


if __name__ == "__main__":
    main()
