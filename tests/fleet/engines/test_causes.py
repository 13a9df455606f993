"""Lines that engines really print, and what they are taken for."""

import subprocess
import sys

import pytest

from loadcell.errors import UserError
from loadcell.fleet.causes import CauseFinder
from loadcell.fleet.engines import ENGINES
from loadcell.fleet.spec import EngineName, LogPattern

CORE = "(EngineCore_DP0 pid=17374) ERROR 09-28 15:47:24 [core.py:718] "
PYDANTIC = "pydantic_core._pydantic_core.ValidationError:"
LINES: list[tuple[EngineName, str, str]] = [
    ("vllm", "out_of_memory", CORE + "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB"),
    ("vllm", "out_of_memory", "[rank3]: RuntimeError: NPU out of memory. Tried to allocate 260.00 MiB (NPU 0; 28.50 GiB total capacity)"),
    ("vllm", "out_of_memory", CORE + "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`"),
    ("vllm", "out_of_memory", "ValueError: To serve at least one request with the models's max seq len (40960), (5.00 GiB KV cache is needed, which is larger than the available KV cache memory (1.00 GiB)."),
    ("vllm", "out_of_memory", CORE + "ValueError: Free memory on device (3.22/4.0 GiB) on startup is less than desired GPU memory utilization (0.9, 3.6 GiB). Decrease GPU memory utilization"),
    ("vllm", "out_of_memory", "ValueError: Available memory on node 0 (3.86/16.0 GiB) on startup is less than desired CPU memory utilization (0.92, 14.72 GiB). On the CPU backend"),
    ("vllm", "bad_arguments", "vllm: error: unrecognized arguments: --max-num-sequences 3"),
    ("vllm", "bad_arguments", "vllm serve: error: argument --max-num-seqs: invalid int value: 'x'"),
    ("vllm", "bad_arguments", "vllm serve: error: argument --dtype: invalid choice: 'f8' (choose from 'auto', 'half')"),
    ("vllm", "fatal", "(APIServer pid=1) pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig"),
    ("vllm", "bad_arguments", PYDANTIC + " 2 validation errors for SchedulerConfig\nmax_num_seqs\n  Input should be greater than or equal to 1 [type=greater_than_equal, input_value=0, input_type=int]"),
    ("vllm", "bad_arguments", PYDANTIC + " 1 validation error for VllmConfig\n  Value error, Total number of attention heads (4) must be divisible by tensor parallel size (3). [type=value_error, input_value=ArgsKwargs(())]"),
    ("vllm", "missing_model", PYDANTIC + " 1 validation error for ModelConfig\n  Value error, Invalid repository ID or local directory specified: '/models/none'.\nPlease verify the following requirements:"),
    ("vllm", "out_of_memory", CORE + "ValueError: Available memory on node 0 (3.86/16.0 GiB) on kv cache allocation is less than requested memory for kv (8.0 GiB). Decrease --kv-cache-memory-bytes"),
    ("vllm", "bad_arguments", "  Value error, User-specified max_model_len (99999) ...\nValueError: User-specified max_model_len (99999) is greater than the derived max_model_len"),
    ("vllm", "bad_arguments", "ValueError: Total number of attention heads (28) must be divisible by tensor parallel size (8)."),
    ("vllm", "port_taken", "OSError: [Errno 98] Address already in use"),
    ("vllm", "port_taken", "ERROR:    [Errno 98] error while attempting to bind on address ('0.0.0.0', 8000): address already in use"),
    ("vllm", "missing_model", "OSError: /models/none does not appear to have a file named config.json. Checkout 'https://huggingface.co//models/none'"),
    ("vllm", "missing_model", "huggingface_hub.errors.HFValidationError: Repo id must be in the form 'repo_name' or 'namespace/repo_name': '/models/none'."),
    ("vllm", "missing_model", "OSError: We couldn't connect to 'https://huggingface.co' to load the files, and couldn't find them in the cached files."),
    ("vllm", "driver_fault", "RuntimeError: CUDA error: uncorrectable ECC error encountered"),
    ("vllm", "driver_fault", "RuntimeError: No CUDA GPUs are available"),
    ("vllm", "driver_fault", "RuntimeError: Failed to infer device type, please set the environment variable `VLLM_LOGGING_LEVEL=DEBUG`"),
    ("vllm", "fatal", "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"),
    ("vllm", "fatal", CORE + "EngineCore encountered a fatal error."),
    ("sglang", "out_of_memory", "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static. Current value: mem_fraction_static=0.3"),
    ("sglang", "port_taken", "ValueError: port at 30000 is not available in 30 seconds. "),
    ("sglang", "bad_arguments", "launch_server.py: error: argument --tp-size/--tp/--tensor-parallel-size: invalid int value: 'x'"),
    ("sglang", "fatal", "[2026-12-01 10:00:00 TP0] Scheduler hit an exception: Traceback (most recent call last):"),
    ("mindie", "fatal", "ERR: Failed to init endpoint! Please check the service log or console output."),
    ("mindie", "driver_fault", "ImportError: libascend_hal.so: cannot open shared object file: No such file or directory"),
    ("simulated", "port_taken", "loadcell: error: --host 127.0.0.1 --port 80: cannot listen there: Address already in use"),
    ("simulated", "bad_arguments", "loadcell: error: unknown flag --foo: see `loadcell simulate --help`"),
    ("command", "out_of_memory", "CUDA out of memory"),
]  # fmt: skip


@pytest.mark.parametrize(("engine", "cause", "text"), LINES, ids=lambda one: str(one)[:40])
def test_words_of_the_real_thing(engine: EngineName, cause: str, text: str) -> None:
    finder = CauseFinder(ENGINES[engine].patterns)
    for line in text.split("\n"):
        finder.feed(line)
    assert finder.best is not None
    assert finder.best[0] == cause


def _fed(*lines: str) -> tuple[str, str] | None:
    finder = CauseFinder(ENGINES["vllm"].patterns)
    for line in lines:
        finder.feed(line)
    return finder.best


OOM = "torch.OutOfMemoryError: CUDA out of memory."
PORT = "OSError: [Errno 98] Address already in use"
END = "RuntimeError: Engine core initialization failed. See root cause above."


def test_a_root_beats_its_consequences() -> None:
    assert _fed("INFO fine", "EngineCore failed to start.", OOM, PORT, END) == ("out_of_memory", OOM)
    assert _fed(END, PORT) == ("port_taken", PORT)
    assert _fed("EngineCore failed to start.", END) == ("fatal", "EngineCore failed to start.")
    assert _fed("INFO fine") is None


def test_colours_and_endless_lines_do_not_hide_or_hang() -> None:
    assert _fed("\x1b[1;36m(APIServer)\x1b[0;0m \x1b[31m" + OOM) == ("out_of_memory", "(APIServer) " + OOM)
    assert _fed("x" * 10_000_000) is None


@pytest.mark.parametrize("process", ["", "(APIServer pid=17) "])
def test_an_indented_line_is_told_with_what_it_is_about(process: str) -> None:
    limit = "Input should be greater than or equal to 1 [type=greater_than_equal, input_value=0, input_type=int]"
    found = _fed(f"{process}{PYDANTIC} 1 validation error for SchedulerConfig", f"{process}max_num_seqs", f"{process}  {limit}", END)
    assert found == ("bad_arguments", f"{process}max_num_seqs: {limit}")
    refused = f"{process}ERROR 12-01 03:45:02 [core.py:1510] ValueError: No available memory for the cache blocks."
    assert _fed(f"{process}ERROR 12-01 03:45:02 [core.py:1510]     raise ValueError(", refused) == ("out_of_memory", refused)
    assert _fed(f"{process}  {limit}") == ("bad_arguments", f"{process}  {limit}")


def test_own_patterns_come_first_and_must_be_readable() -> None:
    finder = CauseFinder((LogPattern("fatal", "FATAL engine init"), *ENGINES["command"].patterns))
    finder.feed("12:00 FATAL engine init")
    assert finder.best == ("fatal", "12:00 FATAL engine init")
    with pytest.raises(UserError, match="fatal"):
        CauseFinder([LogPattern("fatal", "(")])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "cause"),
    [
        (["--fault", "oom_start"], "out_of_memory"),
        (["--profile", "h100:llama-3.1-8b", "--gpu-memory-utilization", "0.2"], "out_of_memory"),
        (["--profile", "h100:llama-3.1-8b", "--gpu-memory-utilization", "0.25", "--max-model-len", "131072"], "out_of_memory"),
        (["--max-num-seqs", "0"], "bad_arguments"),
        (["--nonsense", "1"], "bad_arguments"),
        (["--max-model-len", "99999999"], "bad_arguments"),
        (["--tensor-parallel-size", "7"], "bad_arguments"),
    ],
    ids=lambda one: " ".join(one) if isinstance(one, list) else one,
)
def test_the_simulated_engine_says_the_same(words: list[str], cause: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "loadcell", "simulate", "--port", "0", "--exit-on-stdin-eof", *words],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    finder = CauseFinder(ENGINES["simulated"].patterns)
    for line in (ended.stdout + ended.stderr).splitlines():
        finder.feed(line)
    assert ended.returncode != 0
    assert finder.best is not None, ended.stderr
    assert finder.best[0] == cause
