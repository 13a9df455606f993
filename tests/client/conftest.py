"""Kernel receive stamps stay on while these tests run, as they do during a run."""

import os
from collections.abc import Iterator

import pytest

from loadcell.client import sweep
from loadcell.client.stamps import KernelStamps

_MISSING = "loadcell.client._drain is not built: there was no compiler when this was installed"


@pytest.fixture(autouse=True, scope="session")
def stamping() -> Iterator[KernelStamps]:
    stamps = KernelStamps()
    yield stamps
    stamps.close()


def _is_built() -> bool:
    # CI has a compiler; elsewhere it may be missing.
    assert sweep.COMPILED is not None or not os.environ.get("CI"), "loadcell.client._drain was not built"
    return sweep.COMPILED is not None


@pytest.fixture
def built() -> None:
    """For what cannot be tested without the compiled code."""
    if not _is_built():
        pytest.skip(_MISSING)


@pytest.fixture(params=["compiled", "python"])
def compiled(request: pytest.FixtureRequest) -> bool:
    """Whether sockets are read by compiled code: each test that asks runs both ways."""
    if request.param == "compiled" and not _is_built():
        pytest.skip(_MISSING)
    return bool(request.param == "compiled")
