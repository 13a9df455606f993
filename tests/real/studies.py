"""`loadcell tune FILE` as a user has it, over vLLM servers that it starts and stops: a file, a process, a folder."""

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

from loadcell.report.study import StudyResults, StudyTrial
from loadcell.tune.events import Record
from loadcell.tune.outcome import TrialResult

from .experiment import Experiment, Place

READY_REQUESTS = 1
"""What a service is asked before its load, to see that it answers."""
_GENERATIONS = re.compile(r'"POST /v1/(?:chat/)?completions HTTP/1\.1" (\d+)')


class TunedStudy(Experiment):
    file = "study.toml"
    limit_s = 1500  # on a busy machine a start takes minutes

    @property
    def found(self) -> StudyResults:
        return msgspec.json.decode((self.run / "trials.json").read_bytes(), type=StudyResults)

    @property
    def record(self) -> Record:
        return Record.read((self.run / "events.jsonl").read_bytes())

    def trials(self, *kinds: str) -> list[StudyTrial]:
        return [one for one in self.found.trials if one.kind in kinds]

    def recorded_results(self) -> list[TrialResult]:
        """With what only the record holds."""
        return list(self.record.results.values())

    def place_of(self, trial: StudyTrial | TrialResult) -> Path:
        assert trial.folder is not None
        return self.run / trial.folder

    def log_of(self, trial: StudyTrial | TrialResult) -> str:
        return (self.place_of(trial) / "logs" / "replica-0.log").read_text(errors="replace")

    def generations(self, trial: StudyTrial | TrialResult) -> Counter[str]:
        """Requests for tokens in the server's own access log, by status."""
        return Counter(_GENERATIONS.findall(self.log_of(trial)))

    def summary(self, trial: StudyTrial) -> dict[str, Any]:
        """Of its load by our own client."""
        found: dict[str, Any] = json.loads((self.place_of(trial) / "load" / "summary.json").read_text())
        return found

    def tune(self, *words: str) -> None:
        """To its end, with nothing left running."""
        self.begin("tune", "--output-dir", "run", *words)
        self.finish()
        assert [process.cmdline() for process in self.left()] == []
        assert self.recorded() == []


def study(place: Place, name: str, text: str) -> TunedStudy:
    folder = place.folder / name
    folder.mkdir()
    (folder / "study.toml").write_text(text)
    return TunedStudy(folder)
