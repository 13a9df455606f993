"""A run's folder on disk -> its facts and its records, also where the run was cut short: what a report is made of.

Nothing is changed. Parts that were never joined are read where they lie, because the run that writes them may still be alive.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from loadcell.errors import UserError
from loadcell.metrics.facts import RunFacts, RunIdentity
from loadcell.recordlog import Log, LogHeader, read_events
from loadcell.records import RequestRecord
from loadcell.scenario import Scenario

RECORDS: Final = "records.jsonl"
PARTS: Final = "records.part-*.jsonl"
FACTS: Final = "run.json"
EVENTS: Final = "events.jsonl"


class StoredRun:
    """`records` streams, and can be iterated again. `remarks`: what was missing, dropped or guessed, one line each."""

    def __init__(self, folder: Path, facts: RunFacts, records: "LogChain", remarks: list[str]) -> None:
        self.folder = folder
        self.facts = facts
        self.records = records
        self.remarks = remarks


class LogChain:
    """The records of several logs, one log after the other."""

    def __init__(self, logs: Iterable[Log]) -> None:
        self.logs = list(logs)

    def __iter__(self) -> Iterator[RequestRecord]:
        for log in self.logs:
            yield from log


def open_run(given: Path) -> StoredRun:
    """Open a run by its folder (or a file in it). UserError when there is nothing to report on."""
    folder = given if given.is_dir() or not given.exists() else given.parent
    if not folder.is_dir():
        raise UserError(f"{given}: no such run folder; give the folder that `loadcell bench` printed")
    remarks: list[str] = []
    logs = _logs(folder, remarks)
    facts = _facts(folder, logs[0].header, remarks)
    torn = any(log.dropped_fragments for log in logs)
    facts = msgspec.structs.replace(
        facts,
        notices=(*facts.notices, *remarks),
        partial=facts.partial or torn or logs[0].path.name != RECORDS,
        purity={} if torn else facts.purity,  # what we sent is not all known: what is missing would be laid at somebody else's door
    )
    return StoredRun(folder, facts, LogChain(logs), remarks)


def _logs(folder: Path, remarks: list[str]) -> list[Log]:
    """The joined log, or every readable part."""
    joined = folder / RECORDS
    parts = [] if joined.exists() else sorted(folder.glob(PARTS))
    if not parts:
        if not joined.exists():
            raise UserError(f"{folder}: there is no {RECORDS}, so this is no run's folder; give the one that `loadcell bench` printed")
        logs = [Log(joined)]
    else:
        remarks.append(f"the run did not end by itself: {len(parts)} part(s) of its records were read as they lie")
        logs = list(_readable(parts, remarks))
        if not logs:
            raise UserError(f"{folder}: no part of the records can be read; nothing was recorded")
    for log in logs:
        if log.dropped_fragments:
            remarks.append(f"{log.path.name}: its half-written last line was dropped")
    return logs


def _readable(parts: list[Path], remarks: list[str]) -> Iterator[Log]:
    for part in parts:
        try:
            yield Log(part)
        except UserError as error:
            remarks.append(f"{part.name} was left out: {error}")


def _facts(folder: Path, header: LogHeader, remarks: list[str]) -> RunFacts:
    """run.json; without it, what the header tells, as a partial run."""
    path = folder / FACTS
    try:
        return msgspec.json.decode(path.read_bytes(), type=RunFacts)
    except FileNotFoundError:
        remarks.append(f"{FACTS} is missing: the run was cut off, what only its end could tell is unknown")
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        remarks.append(f"{FACTS} cannot be read ({error}): what only the run's end could tell is unknown")
    return _from_header(folder, header)


def _from_header(folder: Path, header: LogHeader) -> RunFacts:
    run = RunIdentity(
        run_id=header.run_id,
        name=header.name,
        created=header.created,
        host=header.host,
        versions=header.versions,
        spec=header.spec,
        client=header.client,
    )
    facts = _with_health(RunFacts(run=run, endpoints=tuple(header.endpoints), partial=True), folder / EVENTS)
    try:
        scenario = msgspec.convert(header.spec, Scenario)
    except msgspec.ValidationError:
        return facts  # a spec of another version still has records worth reporting
    schedule = scenario.schedule
    rate = schedule.request_rate
    return msgspec.structs.replace(
        facts,
        run=msgspec.structs.replace(run, label=scenario.label, metadata=scenario.metadata, model=scenario.target.model),
        concurrency_cap=schedule.concurrency,
        offered_rate=None if rate is None or rate == float("inf") else rate,
        num_planned=schedule.num_prompts,
        duration_s=schedule.duration_s,
        slos=scenario.slos,
        goodput_slos=scenario.goodput,
        devices=scenario.devices,
        strategy=scenario.endpoint.strategy,
        prefix_asked=scenario.workload.prefix_len > 0 or scenario.workload.dataset == "mooncake" or scenario.workload.same_prompts,
    )


def _with_health(facts: RunFacts, events: Path) -> RunFacts:
    """Ejections and the last known state of each endpoint, from the log of events; unknown without one."""
    if not events.exists():
        return facts
    ejections: dict[str, int] = {}
    down: set[str] = set()
    why: dict[str, str] = {}
    for event in read_events(events):
        if event.endpoint is None:
            continue
        if event.kind == "endpoint_unhealthy":
            ejections[event.endpoint] = ejections.get(event.endpoint, 0) + 1
            down.add(event.endpoint)
            why.setdefault(event.endpoint, f"{event.endpoint} endpoint unhealthy: {event.cause}")
        elif event.kind == "endpoint_recovered":
            down.discard(event.endpoint)
    healthy = tuple(endpoint.name for endpoint in facts.endpoints if endpoint.name not in down)
    return msgspec.structs.replace(facts, ejections=ejections, healthy_at_end=healthy, notices=(*facts.notices, *why.values()))
