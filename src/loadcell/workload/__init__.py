"""What is asked: synthetic prompts and data sets, made one at a time from a seed."""

from loadcell.workload.checks import parse_range_ratio, validate
from loadcell.workload.file_tokenizer import local_tokenizer
from loadcell.workload.prompt import LengthReport, Prompt, WorkloadReport
from loadcell.workload.spec import Purpose, WorkloadSpec
from loadcell.workload.tokenizer import Tokenizer, WordTokenizer
from loadcell.workload.workload import Workload, open_workload

__all__ = [
    "LengthReport",
    "Prompt",
    "Purpose",
    "Tokenizer",
    "WordTokenizer",
    "Workload",
    "WorkloadReport",
    "WorkloadSpec",
    "local_tokenizer",
    "open_workload",
    "parse_range_ratio",
    "validate",
]
