"""The words with which engines, and what they are made of, say that they cannot go on -> patterns by cause. Data, and how to write it.

Each stands for lines that end a start: nothing here may match what a healthy engine prints. Order matters within a line: the first pattern counts.
"""

from collections.abc import Iterable
from typing import Final

from loadcell.fleet.spec import Cause, LogPattern


def patterns(cause: Cause, texts: Iterable[str]) -> tuple[LogPattern, ...]:
    return tuple(LogPattern(cause, text) for text in texts)


TORCH_OUT_OF_MEMORY: Final = patterns(
    "out_of_memory",
    (
        r"\b(CUDA|HIP|NPU|XPU) out of memory\b",
        r"\bOutOfMemoryError:",
        r"(CUDA|HIP) error: out of memory",
        r"\bcudaErrorMemoryAllocation\b|\bhipErrorOutOfMemory\b",
        r"CUBLAS_STATUS_ALLOC_FAILED",
        r"\baclrtMalloc\w* failed|EL0004|\bFAIL_TO_ALLOCATE_MEMORY\b|error code is 207001",  # CANN: no device memory
        r"DefaultCPUAllocator: can't allocate memory|DefaultCPUAllocator: not enough memory",
        r"std::bad_alloc",
    ),
)
PORT_TAKEN: Final = patterns("port_taken", (r"[Aa]ddress already in use", r"\bEADDRINUSE\b", r"error while attempting to bind on address"))
ARGPARSE: Final = patterns(
    "bad_arguments",
    (
        r"\berror: unrecognized arguments:",
        r"\berror: argument [-\w/, ]+: ",
        r"\berror: the following arguments are required:",
        r"\berror: ambiguous option:",
    ),
)
PYDANTIC: Final = (
    # The line that says what is wrong comes after the one that says of what.
    *patterns("bad_arguments", (r"(^|\s)Value error, ", r"\[type=\w+, input_value=")),
    *patterns("fatal", (r"\bvalidation errors? for \w*(Config|Args)\b",)),
)
MODEL_HUB: Final = patterns(
    "missing_model",
    (
        r"does not appear to have a file named \S+",
        r"is not a local folder and is not a valid model identifier",
        r"Invalid repository ID or local directory specified",
        r"Repo id must (be in the form|use alphanumeric chars)",
        r"\bHFValidationError\b",
        r"\bRepositoryNotFoundError\b|\bRepository Not Found for url\b",
        r"\bGatedRepoError\b|You are trying to access a gated repo",
        r"Can't load (the configuration of|tokenizer for|config for) '",
        r"couldn't connect to '[^']*' to load (this|the) file|We couldn't connect to '[^']*'",
        r"Cannot find any model weights with",
        r"No such file or directory: '[^']*(config\.json|\.safetensors|tokenizer[^']*)'",
    ),
)
DRIVER: Final = patterns(
    "driver_fault",
    (
        r"CUDA driver version is insufficient|CUDA driver initialization failed",
        r"The NVIDIA driver on your system is too old|Found no NVIDIA driver on your system",
        r"CUDA error: (?!out of memory)",
        r"\bcudaErrorNoDevice\b|no CUDA-capable device is detected|No CUDA GPUs are available|No HIP GPUs are available",
        r"HIP error: (?!out of memory)|hipErrorNoBinaryForGpu",
        r"uncorrectable ECC error|\bNVRM: Xid\b|GPU has fallen off the bus|GPU is lost",
        r"NCCL error: (unhandled|remote|internal)|ncclUnhandledCudaError|ncclSystemError|ncclInternalError",
        r"Failed to infer device type",
        r"libcuda\.so(\.1)?: cannot open shared object file|libascend_hal\.so: cannot open shared object file",
        r"\bdrvDeviceGetCount\b|\bdcmi module initialize failed\b|\brtSetDevice\b.* failed|\baclrtSetDevice\b.* failed",
        r"HCCL_E_|hccl\w* .*error code|EI000[0-9]|EJ000[0-9]",
    ),
)
