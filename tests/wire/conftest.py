"""Both ways in which reads that are alike are taken."""

import os
from collections.abc import Iterator

import pytest

from loadcell.wire import alike, answer


def _is_built() -> bool:
    # CI has a compiler; elsewhere it may be missing.
    assert alike.COMPILED is not None or not os.environ.get("CI"), "loadcell.wire._alike was not built"
    return alike.COMPILED is not None


@pytest.fixture(scope="module", params=["compiled", "python"])
def take(request: pytest.FixtureRequest) -> Iterator[alike.Take]:
    """What takes reads that are alike: each module that asks runs both ways."""
    if request.param == "compiled" and not _is_built():
        pytest.skip("loadcell.wire._alike is not built: there was no compiler when this was installed")
    chosen = alike.take_in_python if request.param == "python" or alike.COMPILED is None else alike.COMPILED
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(answer, "TAKE", chosen)
        yield chosen
