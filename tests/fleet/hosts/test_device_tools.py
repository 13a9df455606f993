"""What the vendors' tools print, made into devices. The outputs have the form of real ones (nvidia-smi 550, rocm-smi 6, npu-smi of CANN 8)."""

import pytest

from loadcell.fleet.hosts.device_tools import devices, parse_amd, parse_ascend, parse_nvidia
from loadcell.fleet.hosts.host import DeviceUse, Ended

NVIDIA = "0, GPU-aa, NVIDIA H200, 70123, 143771\n1, GPU-bb, NVIDIA H200, 0, 143771\n10, GPU-cc, NVIDIA GB10, [N/A], [N/A]\n"
NVIDIA_HOLDERS = "GPU-aa, 4711, /usr/bin/python3\nGPU-aa, 4712, [Not Found]\n"

AMD = """WARNING: AMD GPU device(s) is/are in a low-power state. Check power control/runtime_status

{"card1": {"VRAM Total Memory (B)": "206141652992", "VRAM Total Used Memory (B)": "297750528", "Card Series": "AMD Instinct MI300X"},
 "card0": {"VRAM Total Memory (B)": "206141652992", "VRAM Total Used Memory (B)": "177386942464", "Card series": "AMD Instinct MI300X"},
 "system": {"Driver version": "6.7"}}
"""
AMD_HOLDERS = """============================ ROCm System Management Interface ============================
================================== GPUs Indexed by PID ===================================
PID 1168514 is using 2 DRM device(s):
0 1
PID 3828095 is using 0 DRM device(s)
==========================================================================================
"""

ASCEND_910B = """+------------------------------------------------------------------------------------------------+
| npu-smi 24.1.rc2                 Version: 24.1.rc2                                             |
+---------------------------+---------------+----------------------------------------------------+
| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
| Chip                      | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |
+===========================+===============+====================================================+
| 0     910B3               | OK            | 91.0        36                0    / 0             |
| 0                         | 0000:C1:00.0  | 0           0    / 0          41301/ 65536         |
+===========================+===============+====================================================+
| 1     910B3               | OK            | 95.4        37                0    / 0             |
| 0                         | 0000:42:00.0  | 0           0    / 0          3400 / 65536         |
+===========================+===============+====================================================+
+---------------------------+---------------+----------------------------------------------------+
| NPU     Chip              | Process id    | Process name             | Process memory(MB)      |
+===========================+===============+====================================================+
| 0       0                 | 1333928       | python3.11               | 37709                   |
+===========================+===============+====================================================+
| No running processes found in NPU 1                                                            |
+===========================+===============+====================================================+
"""
ASCEND_A3 = """| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
| Chip  Phy-ID              | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |
+===========================+===============+====================================================+
| 6     Ascend910           | OK            | 243.3       53                0    / 0             |
| 0     12                  | 0000:85:00.0  | 17          0    / 0          50719/ 65536         |
+------------------------------------------------------------------------------------------------+
| 6     Ascend910           | OK            | -           50                0    / 0             |
| 1     13                  | 0000:87:00.0  | 17          0    / 0          3122 / 65536         |
+===========================+===============+====================================================+
| NPU     Chip              | Process id    | Process name             | Process memory(MB)      |
+===========================+===============+====================================================+
| 6       0                 | 3085960       |                          | 47426                   |
| 6       0                 | 3085961       |                          | 122                     |
+===========================+===============+====================================================+
"""


def test_nvidia() -> None:
    assert parse_nvidia(NVIDIA, NVIDIA_HOLDERS) == (
        DeviceUse(0, "nvidia", "NVIDIA H200", 70123.0, 143771.0, ((4711, "/usr/bin/python3"), (4712, "[Not Found]"))),
        DeviceUse(1, "nvidia", "NVIDIA H200", 0.0, 143771.0, ()),
        DeviceUse(10, "nvidia", "NVIDIA GB10", None, None, ()),
    )


def test_amd() -> None:
    found = parse_amd(AMD, AMD_HOLDERS)
    assert [(d.index, d.name, round(d.memory_used_mib or 0), d.holders) for d in found] == [
        (0, "AMD Instinct MI300X", 169169, ((1168514, ""),)),
        (1, "AMD Instinct MI300X", 284, ((1168514, ""),)),
    ]


def test_ascend_one_chip_per_card() -> None:
    assert parse_ascend(ASCEND_910B) == (
        DeviceUse(0, "ascend", "910B3", 41301.0, 65536.0, ((1333928, "python3.11"),)),
        DeviceUse(1, "ascend", "910B3", 3400.0, 65536.0, ()),
    )


def test_ascend_two_chips_per_card_by_physical_id() -> None:
    assert parse_ascend(ASCEND_A3) == (
        DeviceUse(12, "ascend", "Ascend910", 50719.0, 65536.0, ((3085960, ""), (3085961, ""))),
        DeviceUse(13, "ascend", "Ascend910", 3122.0, 65536.0, ()),
    )


@pytest.mark.parametrize("parse", [lambda text: parse_nvidia(text, text), lambda text: parse_amd(text, text), parse_ascend])
@pytest.mark.parametrize("text", ["", "No devices were found\n", "\x00{", "| | |\n"])
def test_no_devices(parse, text: str) -> None:  # type: ignore[no-untyped-def]
    assert parse(text) == ()


class TestTools:
    @staticmethod
    def asked(outputs: dict[tuple[str, str], str], vendor: str) -> tuple[DeviceUse, ...] | None:
        def run(argv: object) -> Ended:
            words = list(argv)  # type: ignore[call-overload]
            out = outputs.get((words[0], words[1].split("=")[0]))
            return Ended(127, "", "not found") if out is None else Ended(0, out, "")

        return devices(run, lambda pids: ["vllm serve x" if pid == 4711 else "" for pid in pids], vendor)

    NVIDIA_TOOL = {("nvidia-smi", "--query-gpu"): NVIDIA, ("nvidia-smi", "--query-compute-apps"): NVIDIA_HOLDERS}  # noqa: RUF012

    def test_the_whole_command_line_where_the_system_knows_it(self) -> None:
        found = self.asked(self.NVIDIA_TOOL, "auto")
        assert found is not None
        assert found[0].holders == ((4711, "vllm serve x"), (4712, "[Not Found]"))

    def test_whichever_tool_is_there(self) -> None:
        found = self.asked({("npu-smi", "info"): ASCEND_910B}, "auto")
        assert found is not None
        assert found[0].vendor == "ascend"

    @pytest.mark.parametrize("vendor", ["amd", "ascend", "none"])
    def test_null_without_the_tool(self, vendor: str) -> None:
        assert self.asked(self.NVIDIA_TOOL, vendor) is None
