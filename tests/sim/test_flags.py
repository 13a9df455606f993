import inspect
import re
from pathlib import Path

import msgspec
import pytest

from loadcell.cli.simulate import simulate
from loadcell.errors import UserError
from loadcell.sim.faults import PARAMETERS
from loadcell.sim.flags import argv_from_spec, described_fields, flag, spec_from_argv
from loadcell.sim.spec import SimSpec

CHANGED = SimSpec(
    port=0,
    served_model_name=("a", "b"),
    fault=("crash,after=5", "hang,every=2"),
    enable_prefix_caching=False,
    enforce_eager=True,
    ttft_ms=1.5,
    quantization="fp8",
    seed=-3,
)


@pytest.mark.parametrize("spec", [SimSpec(), CHANGED])
def test_a_spec_survives_its_own_command_line(spec: SimSpec) -> None:
    assert spec_from_argv(argv_from_spec(spec)) == spec


def test_flags_are_vllms() -> None:
    argv = ["--max-num-seqs", "64", "--no-enable-prefix-caching", "--kv-cache-dtype", "fp8", "--served-model-name", "a", "b"]
    spec = spec_from_argv(argv)
    assert (spec.max_num_seqs, spec.enable_prefix_caching, spec.kv_cache_dtype, spec.served_model_name) == (64, False, "fp8", ("a", "b"))


@pytest.mark.parametrize("argv", [["--max-num-seq", "4"], ["--max-num-seqs", "four"], ["--quantization", "int3"]])
def test_what_cannot_be_read_is_the_users(argv: list[str]) -> None:
    with pytest.raises(UserError, match=argv[0]):
        spec_from_argv(argv)


def test_the_command_has_every_field() -> None:
    assert list(inspect.signature(simulate).parameters) == [field.name for field in msgspec.structs.fields(SimSpec)]


def test_every_flag_and_fault_is_documented() -> None:
    text = (Path(__file__).parents[2] / "docs" / "simulate.md").read_text()
    missing = [flag(name) for name, *_ in described_fields() if not re.search(rf"{flag(name)}\b", text)]
    assert missing + [kind for kind in PARAMETERS if f"`{kind}`" not in text] == []
