"""Run an engine in its own time: arrivals in, the moments of all tokens out, in a fraction of a second and without a server. Pure."""

from collections.abc import Iterable

from loadcell.sim.sequence import Sequence
from loadcell.sim.timeline import Timeline


def play(timeline: Timeline, sequences: Iterable[Sequence]) -> dict[int, list[tuple[int, int]]]:
    """`seq_id` -> [(moment in ns, new tokens)], until all have finished. Arrivals need no order."""
    ahead = sorted(sequences, key=lambda seq: seq.arrival_ns, reverse=True)
    told: dict[int, list[tuple[int, int]]] = {seq.seq_id: [] for seq in ahead}
    while True:
        due_ns = timeline.due_ns
        if ahead and (due_ns is None or ahead[-1].arrival_ns <= due_ns):
            seq = ahead.pop()
            timeline.add(seq, seq.arrival_ns)
        elif due_ns is not None:
            for seq, count in timeline.advance(due_ns):
                told[seq.seq_id].append((due_ns, count))
        else:
            return told
