"""Spec + tokenizer -> a workload: any prompt by its index, and an account of what was made."""

from typing import Protocol

from loadcell.errors import UserError
from loadcell.workload.checks import validate
from loadcell.workload.compose import Composer, WordComposer
from loadcell.workload.custom import read_custom
from loadcell.workload.exact import ExactComposer
from loadcell.workload.mooncake import MooncakePrompts
from loadcell.workload.prompt import LengthTally, Prompt, WorkloadReport
from loadcell.workload.rows import Bounds, RowPrompts, check_enough, fit, in_order
from loadcell.workload.sharegpt import NO_PAIR, read_sharegpt
from loadcell.workload.sharegpt import bounds as sharegpt_bounds
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
    """Prompts by index. `prompt` is a function of (index, purpose); only the report remembers what was made.

    `trace_s`: when a trace's requests came, in seconds from its start; empty for other workloads.
    """

    def __init__(
        self, spec: WorkloadSpec, tokenizer: Tokenizer, prompts: Prompts, trace_s: tuple[float, ...] = (), composer: Composer | None = None
    ) -> None:
        self._spec = spec
        self._tokenizer = tokenizer
        self._prompts = prompts
        self._composer = composer
        self.prompt = prompts.prompt
        self.trace_s = trace_s

    @property
    def size(self) -> int | None:
        """Distinct prompts; null when endless."""
        return self._prompts.size

    def trust(self) -> None:
        """Make further prompts without asking the tokenizer: where that is the server's, asking would disturb what is measured."""
        if self._composer is not None:
            self._composer.trust()

    @property
    def repaired(self) -> int:
        """Prompts so far that missed their length at first: with such a tokenizer lengths cannot be trusted uncounted."""
        return self._composer.repaired if self._composer is not None else 0

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
            unverified=self._composer.unverified if self._composer is not None else 0,
            input=made.input_lengths.report(),
            output=made.output_lengths.report(),
        )


def open_workload(spec: WorkloadSpec, tokenizer: Tokenizer, chat: bool, needed: int | None = None) -> Workload:
    """The workload of `spec`, read and checked as a whole: what is wrong with a data set is raised here, as a UserError.

    `chat`: messages can be sent. `needed`: how many prompts the run asks for, where it is known.
    """
    validate(spec)
    if spec.dataset == "random":
        composer = composer_for(tokenizer)
        return Workload(spec, tokenizer, SyntheticPrompts(spec, tokenizer, composer, chat=chat), composer=composer)
    if spec.dataset == "mooncake":
        composer = composer_for(tokenizer)
        trace = MooncakePrompts(spec, tokenizer, composer, chat=chat)
        check_enough(spec, trace.size or 0, needed or 0)
        return Workload(spec, tokenizer, trace, trace.trace_s, composer)
    return Workload(spec, tokenizer, _read_rows(spec, tokenizer, chat, needed))


def _read_rows(spec: WorkloadSpec, tokenizer: Tokenizer, chat: bool, needed: int | None) -> RowPrompts:
    """A data set of texts or messages, in sending order, with what does not fit left out."""
    path = spec.dataset_path or ""
    blanks, skipped, bounds = 0, {}, Bounds()
    if spec.dataset == "sharegpt":
        rows, without = read_sharegpt(path, spec.output_len)
        skipped = {NO_PAIR: without} if without else {}
        bounds = sharegpt_bounds(spec)
    else:
        rows, blanks = read_custom(path, chat)
    fitted = fit(in_order(rows, spec), spec, tokenizer, bounds, chat, needed)
    if not fitted.prompts:
        reasons = ", ".join(f"{count} {reason}" for reason, count in fitted.skipped.items())
        raise UserError(f"--dataset-path {path}: none of {len(rows)} rows can be sent ({reasons})")
    check_enough(spec, len(fitted.prompts), needed or 0)
    return RowPrompts(spec, fitted.prompts, blanks, skipped | fitted.skipped, fitted.capped)


def composer_for(tokenizer: Tokenizer) -> Composer:
    """Exact text where the tokenizer is; else so many words."""
    return ExactComposer(tokenizer) if tokenizer.exact else WordComposer()
