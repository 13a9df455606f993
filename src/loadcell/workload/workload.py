"""Spec + tokenizer -> a workload: any prompt by its index, and an account of what was made."""

from typing import Protocol

from loadcell.errors import UserError
from loadcell.workload.checks import validate
from loadcell.workload.compose import Composer, WordComposer
from loadcell.workload.prompt import LengthTally, Prompt, WorkloadReport
from loadcell.workload.spec import Purpose, WorkloadSpec
from loadcell.workload.synthetic import SyntheticPrompts
from loadcell.workload.tokenizer import Tokenizer


class Prompts(Protocol):
    """Where prompts come from. `size` null: endless."""

    @property
    def size(self) -> int | None: ...
    @property
    def blank_lines(self) -> int: ...
    @property
    def skipped(self) -> dict[str, int]: ...
    @property
    def capped(self) -> int: ...
    @property
    def reused(self) -> int: ...
    @property
    def input_lengths(self) -> LengthTally: ...
    @property
    def output_lengths(self) -> LengthTally: ...

    def prompt(self, index: int, purpose: Purpose) -> Prompt: ...


class Workload:
    """Prompts by index. `prompt` is a function of (index, purpose); only the report remembers what was made."""

    def __init__(self, spec: WorkloadSpec, tokenizer: Tokenizer, prompts: Prompts) -> None:
        self._spec = spec
        self._tokenizer = tokenizer
        self._prompts = prompts
        self.prompt = prompts.prompt

    @property
    def size(self) -> int | None:
        """Distinct prompts; null when endless."""
        return self._prompts.size

    def report(self) -> WorkloadReport:
        """What was made so far."""
        made = self._prompts
        return WorkloadReport(
            dataset=self._spec.dataset,
            tokenizer=self._tokenizer.name,
            exact=self._tokenizer.exact,
            rows=made.size,
            blank_lines=made.blank_lines,
            skipped=dict(made.skipped),
            capped=made.capped,
            reused=made.reused,
            input=made.input_lengths.report(),
            output=made.output_lengths.report(),
        )


def open_workload(spec: WorkloadSpec, tokenizer: Tokenizer, chat: bool, needed: int | None = None) -> Workload:
    """The workload of `spec`, read and checked as a whole: what is wrong with a data set is raised here, as a UserError.

    `chat`: messages can be sent. `needed`: how many prompts the run asks for, where it is known.
    """
    validate(spec)
    if spec.dataset == "random":
        return Workload(spec, tokenizer, SyntheticPrompts(spec, tokenizer, composer_for(tokenizer), chat=chat))
    raise UserError(f"--dataset-name {spec.dataset}: {needed}")


def composer_for(tokenizer: Tokenizer) -> Composer:
    return WordComposer()
