"""What reading one token event costs: ns per event through `AnswerReader.feed_many`, JSON included. Best of seven passes.

Run: python benchmarks/micro_wire.py [events]
"""

import sys
import time
from array import array

from loadcell.wire.answer import AnswerReader

CHAT = (
    b'data: {"id":"chatcmpl-0123456789abcdef0123456789abcdef","object":"chat.completion.chunk","created":1700000000,"model":"a-model",'
    b'"choices":[{"index":0,"delta":{"content":" token%d"},"logprobs":null,"finish_reason":null,"token_ids":null}]}\n\n'
)
REASONING = CHAT.replace(b'"content"', b'"reasoning_content"')
COMPLETIONS = (
    b'data: {"id":"cmpl-0123456789abcdef0123456789abcdef","object":"text_completion","created":1700000000,"model":"a-model",'
    b'"choices":[{"index":0,"text":" token%d","logprobs":null,"finish_reason":null,"stop_reason":null}]}\n\n'
)
COUNTED = CHAT.replace(b"}]}", b'}],"usage":{"prompt_tokens":9,"total_tokens":99,"completion_tokens":%d}}')
END = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'


def reads_of(template: bytes, events: int, framing: str, events_a_read: int) -> list[bytes]:
    """The reads of one answer: its head, `events` events with `events_a_read` in each read, its end."""
    bodies = [template % ((at,) * template.count(b"%d")) for at in range(events)]
    if framing == "chunked":
        head, tail = b"Transfer-Encoding: chunked\r\n", b"%x\r\n%b\r\n0\r\n\r\n" % (len(END), END)
        bodies = [b"%x\r\n%b\r\n" % (len(body), body) for body in bodies]
    else:
        head = b"Content-Length: %d\r\n" % (sum(map(len, bodies)) + len(END)) if framing == "length" else b""
        tail = END
    reads = [b"".join(bodies[at : at + events_a_read]) for at in range(0, events, events_a_read)]
    return [b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n" + head + b"\r\n", *reads, tail]


def ns_per_event(template: bytes, events: int, framing: str = "chunked", events_a_read: int = 1, reads_a_call: int = 1 << 30) -> float:
    reads = reads_of(template, events, framing, events_a_read)
    stamps = array("q", range(len(reads)))
    best = float("inf")
    for _ in range(7):
        reader = AnswerReader()
        begin = time.perf_counter_ns()
        for at in range(0, len(reads), reads_a_call):
            reader.feed_many(reads[at : at + reads_a_call], stamps[at : at + reads_a_call])
        best = min(best, (time.perf_counter_ns() - begin) / events)
        reader.eof(len(reads))
        answer = reader.result()
        assert (answer.outcome, len(answer.chunks)) == ("ok", events)
    return best


def ns_per_answer(answers: int) -> float:
    """A one-token answer in one read, from a new reader to its verdict."""
    read = b"".join(reads_of(CHAT, 1, "chunked", 1))
    best = float("inf")
    for _ in range(5):
        begin = time.perf_counter_ns()
        for at in range(answers):
            reader = AnswerReader()
            reader.feed(read, at)
            reader.result()
        best = min(best, (time.perf_counter_ns() - begin) / answers)
    return best


def main(events: int = 20_000) -> None:
    rows = {
        "chat, chunked, one event a read": ns_per_event(CHAT, events),
        "the same, fed in batches of 16 reads": ns_per_event(CHAT, events, reads_a_call=16),
        "the same, fed read by read": ns_per_event(CHAT, events, reads_a_call=1),
        "chat, content-length": ns_per_event(CHAT, events, "length"),
        "chat, until close": ns_per_event(CHAT, events, "close"),
        "reasoning, chunked": ns_per_event(REASONING, events),
        "completions, chunked": ns_per_event(COMPLETIONS, events),
        "chat with running usage, chunked": ns_per_event(COUNTED, events),
        "chat, chunked, 4 events a read": ns_per_event(CHAT, events, events_a_read=4),
        "chat, content-length, 4 events a read": ns_per_event(CHAT, events, "length", events_a_read=4),
    }
    for name, cost in rows.items():
        print(f"{cost:8.0f} ns per event   {name}")
    print(f"{ns_per_answer(5_000):8.0f} ns per answer  one-token answer, whole")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
