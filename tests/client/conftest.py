"""Kernel receive stamps stay on while these tests run, as they do during a run."""

from collections.abc import Iterator

import pytest

from loadcell.client.stamps import KernelStamps


@pytest.fixture(autouse=True, scope="session")
def stamping() -> Iterator[KernelStamps]:
    stamps = KernelStamps()
    yield stamps
    stamps.close()
