"""A folder for an experiment in which something goes wrong."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from .laboratory import kill_all


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    kill_all(tmp_path)
