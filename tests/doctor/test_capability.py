import os
import sys
from pathlib import Path

import pytest

from loadcell.cli.capability import measure
from loadcell.errors import EnvironmentFailure


@pytest.mark.slow
def test_the_client_is_measured_against_the_replay_server() -> None:
    allowed = os.sched_getaffinity(0)
    measured = measure(file_limit=128)
    assert os.sched_getaffinity(0) == allowed
    assert measured.steady_streams == measured.full_streams == 64
    assert 0 < measured.start_s < 30
    assert measured.cpu_us_per_token > 0
    assert 0 <= measured.itl_error_p50_us <= measured.itl_error_p99_us
    assert 0 <= measured.lag_p50_ms <= measured.lag_p99_ms
    assert 0.5 * measured.offered_tokens_per_s < measured.tokens_per_s < 1.2 * measured.offered_tokens_per_s


def test_a_client_that_cannot_run_is_a_failure_with_its_words(tmp_path: Path) -> None:
    client = tmp_path / "client.py"
    client.write_text("import sys; sys.exit('no space left')")
    with pytest.raises(EnvironmentFailure, match="the measuring load ended with 1: no space left"):
        measure(command=(sys.executable, str(client)))
