"""What nvidia-smi, rocm-smi and npu-smi print -> `DeviceUse`. The parsers are pure; untried on real devices where no recorded output is cited."""

import csv
import json
import re
from collections.abc import Callable, Sequence
from typing import Any, Final

from loadcell.fleet.hosts.host import DeviceUse, Ended

Run = Callable[[Sequence[str]], Ended]
Commands = Callable[[list[int]], list[str]]

NVIDIA_DEVICES: Final = ("nvidia-smi", "--query-gpu=index,uuid,name,memory.used,memory.total", "--format=csv,noheader,nounits")
NVIDIA_HOLDERS: Final = ("nvidia-smi", "--query-compute-apps=gpu_uuid,pid,process_name", "--format=csv,noheader,nounits")
AMD_DEVICES: Final = ("rocm-smi", "--showproductname", "--showmeminfo", "vram", "--json")
AMD_HOLDERS: Final = ("rocm-smi", "--showpidgpus")
ASCEND_DEVICES: Final = ("npu-smi", "info")


def devices(run: Run, commands: Commands, vendor: str) -> tuple[DeviceUse, ...] | None:
    """The devices of `vendor`, or of the first vendor whose tool is there (`auto`); null: no tool, or it does not answer."""
    asked = {"auto": ("nvidia", "amd", "ascend"), "none": ()}.get(vendor, (vendor,))
    for name in asked:
        found = TOOLS[name](run)
        if found is not None:
            return _with_commands(found, commands)
    return None


def _with_commands(found: tuple[DeviceUse, ...], commands: Commands) -> tuple[DeviceUse, ...]:
    """The tools tell a program's name at best; the system tells its whole command line, where the pid is one of this host."""
    pids = sorted({pid for device in found for pid, _ in device.holders})
    lines = dict(zip(pids, commands(pids), strict=True)) if pids else {}
    return tuple(
        DeviceUse(
            d.index, d.vendor, d.name, d.memory_used_mib, d.memory_total_mib, tuple((pid, lines[pid] or told) for pid, told in d.holders)
        )
        for d in found
    )


def _nvidia(run: Run) -> tuple[DeviceUse, ...] | None:
    listed = run(NVIDIA_DEVICES)
    return parse_nvidia(listed.out, run(NVIDIA_HOLDERS).out) if listed.code == 0 else None


def parse_nvidia(listed: str, holders: str) -> tuple[DeviceUse, ...]:
    """Rows of index, uuid, name, used, total; rows of uuid, pid, program. `[N/A]` where it is not told."""
    by_uuid: dict[str, list[tuple[int, str]]] = {}
    for row in _rows(holders, 3):
        if row[1].isdigit():
            by_uuid.setdefault(row[0], []).append((int(row[1]), ",".join(row[2:])))
    return tuple(
        DeviceUse(int(row[0]), "nvidia", row[2], _number(row[3]), _number(row[4]), tuple(by_uuid.get(row[1], ())))
        for row in _rows(listed, 5)
        if row[0].isdigit()
    )


def _rows(text: str, width: int) -> list[list[str]]:
    rows = csv.reader(text.splitlines(), skipinitialspace=True)
    return [[field.strip() for field in row] for row in rows if len(row) >= width]


def _number(text: object) -> float | None:
    try:
        return float(str(text))
    except ValueError:
        return None


def _amd(run: Run) -> tuple[DeviceUse, ...] | None:
    listed = run(AMD_DEVICES)
    return parse_amd(listed.out, run(AMD_HOLDERS).out) if listed.code == 0 else None


def parse_amd(listed: str, holders: str) -> tuple[DeviceUse, ...]:
    """`{"card0": {"VRAM Total Memory (B)": …}}` after lines that are no JSON; `PID 4711 is using 2 DRM device(s):` and their numbers below."""
    by_index: dict[int, list[tuple[int, str]]] = {}
    pid = None
    for line in holders.splitlines():
        named = re.search(r"PID (\d+) is using (\d+) DRM device", line)
        if named:
            pid = int(named[1])
        elif pid is not None and re.fullmatch(r"[\d\s]+", line.strip() or "-"):
            for index in line.split():
                by_index.setdefault(int(index), []).append((pid, ""))
        elif line.strip():
            pid = None
    try:
        cards = json.JSONDecoder().raw_decode(listed[listed.index("{") :])[0]
    except ValueError:
        return ()
    found = ((int(key[4:]), card) for key, card in cards.items() if re.fullmatch(r"card\d+", key))
    return tuple(_amd_card(index, card, tuple(by_index.get(index, ()))) for index, card in sorted(found, key=lambda pair: pair[0]))


def _amd_card(index: int, card: dict[str, Any], holders: tuple[tuple[int, str], ...]) -> DeviceUse:
    told = {key.lower(): value for key, value in card.items()}
    used, total = (_number(told.get(f"vram total {what} (b)")) for what in ("used memory", "memory"))
    name = str(told.get("card series") or told.get("card model") or told.get("device name") or "")
    return DeviceUse(index, "amd", name, None if used is None else used / 2**20, None if total is None else total / 2**20, holders)


def _ascend(run: Run) -> tuple[DeviceUse, ...] | None:
    listed = run(ASCEND_DEVICES)
    return parse_ascend(listed.out) if listed.code == 0 else None


_ASCEND_NAME: Final = re.compile(r"\|\s*(\d+)\s+(\S+)\s*\|\s*\S+\s*\|.*\|\s*$")
_ASCEND_CHIP: Final = re.compile(r"\|\s*(\d+)\s*(\d+)?\s*\|\s*[0-9A-Fa-f]{4}:[0-9A-Fa-f:.]+\s*\|(.*)\|\s*$")
_ASCEND_HOLDER: Final = re.compile(r"\|\s*(\d+)\s+(\d+)\s*\|\s*(\d+)\s*\|\s*([^|]*?)\s*\|\s*(\d+)\s*\|\s*$")
_PAIR: Final = re.compile(r"(\d+)\s*/\s*(\d+)")


def parse_ascend(listed: str) -> tuple[DeviceUse, ...]:
    """The table of `npu-smi info`: two lines per chip (NPU, name; chip, bus id, memory used / total), then processes by NPU and chip.

    The index is the chip's physical id where the table has one, else its place in the table: that is what ASCEND_RT_VISIBLE_DEVICES counts.
    """
    chips: list[tuple[int, int, str, float | None, float | None]] = []  # NPU, chip, name, used, total
    holders: dict[tuple[int, int], list[tuple[int, str]]] = {}
    npu, name, indices = -1, "", []
    for line in listed.splitlines():
        if chip := _ASCEND_CHIP.match(line):
            # The last pair is the HBM's; one of 0 / 0 before it is of a memory that this chip has not.
            pairs = [pair for pair in _PAIR.findall(chip[3]) if pair[1] != "0"]
            used, total = (float(number) for number in pairs[-1]) if pairs else (None, None)
            indices.append(int(chip[2]) if chip[2] else len(chips))
            chips.append((npu, int(chip[1]), name, used, total))
        elif holder := _ASCEND_HOLDER.match(line):
            holders.setdefault((int(holder[1]), int(holder[2])), []).append((int(holder[3]), holder[4]))
        elif named := _ASCEND_NAME.match(line):
            npu, name = int(named[1]), named[2]
    return tuple(
        DeviceUse(index, "ascend", name, used, total, tuple(holders.get((npu, chip), ())))
        for index, (npu, chip, name, used, total) in zip(indices, chips, strict=True)
    )


TOOLS: Final[dict[str, Callable[[Run], tuple[DeviceUse, ...] | None]]] = {"nvidia": _nvidia, "amd": _amd, "ascend": _ascend}
