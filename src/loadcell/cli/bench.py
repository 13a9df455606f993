"""`loadcell bench`: a run of what the flags ask for. What the flags mean is `loadcell.flags`' business."""

import os
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from loadcell.client.limits import Timeouts
from loadcell.flags.table import EVERY, FLAGS

TABLE = EVERY
LISTS = tuple(flag.spelling for flag in FLAGS.values() if flag.kind == "texts" and flag.name != "slo")


def bench(**given: Any) -> int:
    """Load one or many endpoints, and report what they deliver.

    The run is written to a folder: its records, a summary in JSON, and a report in Markdown. The flags of vllm bench serve that keep
    their meaning are taken under their names; those that have none here are refused, naming the substitute.
    """
    from loadcell.flags.resolve import scenario_from_flags, with_api_key, with_fresh_seed

    told = {name: value for name, value in given.items() if value not in (None, [], ())}
    scenario, output = scenario_from_flags(with_fresh_seed(told))
    for notice in _notices(given, scenario.target.api_key_env):
        print(f"loadcell: {notice}", file=sys.stderr)
    # After the checks: wrong use is answered before the machinery is loaded.
    from loadcell.api import run_scenario
    from loadcell.cli.watch import TerminalWatcher
    from loadcell.load.signals import ignored

    watcher = TerminalWatcher(sys.stderr, _timeouts(scenario.timeouts), silent=not output.progress)
    try:
        result = run_scenario(with_api_key(scenario, os.environ), output, watcher)
    finally:
        watcher.stop()
    if result.facts.stop_signal is not None:
        ignored()  # one more Ctrl-C must not take the table from who has just asked for it
    if not output.quiet:
        from loadcell.report.terminal import show

        out = sys.stderr if output.output_file == "-" else sys.stdout
        show(result.summary, out)
        print(f"\n{result.report}", file=out)
    return result.exit_code


def _timeouts(limits: Timeouts) -> str:
    """How long a silence may last, said before it does."""
    first, idle = f"first output {limits.first_output_s:g} s", f"idle {limits.idle_s:g} s"
    return f"timeouts: connect {limits.connect_s:g} s, {first}, {idle}, total {limits.total_s:g} s"


def _notices(given: Mapping[str, Any], key_variable: str) -> Iterator[str]:
    """What is done otherwise than it was written."""
    from loadcell.wire.url import any_address_notice

    addresses = [*(given.get("base_url") or ()), given.get("host") or ""]
    yield from filter(None, map(any_address_notice, addresses))
    if given.get("api_key_env") and not os.environ.get(key_variable):
        yield f"{key_variable} is not set: requests carry no key"
