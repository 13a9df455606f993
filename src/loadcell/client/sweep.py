"""Ready sockets -> reads and their stamps, and what is left to decide. The only code that runs per token.

Twice: `_drain.c`, where it could be compiled, and `sweep_in_python`. They do the same, and do not differ in what they leave to the drain,
so that whatever ends, breaks or is parsed is handled in one place. In Python the interpreter costs a token about as much as the kernel
does.

All is read before anything is handled. What is handled may close descriptors and open others under the same numbers: streams are told by
their exchange, and a descriptor that is not hot is looked up anew and read without waiting, which finds nothing at worst.
"""

import errno
import select
import time
from array import array
from collections.abc import Callable
from struct import Struct
from typing import Final

from loadcell.client.connection import ANCILLARY_SIZE, READ_SIZE, Receive
from loadcell.client.exchange import CHUNKED, Exchange
from loadcell.clock import NS_PER_S

BIG_READ: Final = 4_096  # a read of many events at once: kept raw, streams that come faster than they are read would fill the memory
_MAX_EVENTS: Final = 16_384
_timespec: Final = Struct("qq")

HotStream = tuple[Exchange, Receive, list[bytes], Callable[[int], None], list[int], bool]
"""What the hot path needs of a stream, looked up once: the exchange, its socket's recvmsg, its reads, the append of its stamps, the indexes
of its reads that the kernel did not stamp, whether its body is chunked."""

Rest = list[int | tuple[Exchange, int | bytes]]
"""In the order in which they were found ready. A descriptor that is not hot; or an exchange and either the error that it broke with
(0: the peer closed), or a read, kept already, that may have ended it or is big."""

Swept = tuple[int, int, int, Rest]
"""How many sockets were ready, how many reads that made, how many of these have no stamp of the kernel's, and the rest."""

Sweep = Callable[[select.epoll, dict[int, HotStream], int, int], Swept]
"""One look at the sockets. A stamp is believed if it lies between `previous_ns` and the read; `offset_ns` takes it to our clock."""


def hot_stream(exchange: Exchange, receive: Receive) -> HotStream:
    stamps: array[int] = exchange.stamps
    return exchange, receive, exchange.datas, stamps.append, exchange.clock_reads, exchange.left == CHUNKED


def sweep_in_python(epoll: select.epoll, hot: dict[int, HotStream], previous_ns: int, offset_ns: int) -> Swept:
    monotonic_ns, unpack = time.monotonic_ns, _timespec.unpack
    ready = epoll.poll(0, _MAX_EVENTS)
    polled = monotonic_ns()
    unread = own = 0
    rest: Rest = []
    for fd, _ in ready:
        stream = hot.get(fd)
        if stream is None:
            unread += 1
            rest.append(fd)
            continue
        exchange, receive, datas, add_stamp, clock_reads, chunked = stream
        try:
            data, ancillary, _, _ = receive(READ_SIZE, ANCILLARY_SIZE)
        except BlockingIOError:
            unread += 1
            continue
        except OSError as error:
            unread += 1
            rest.append((exchange, error.errno or errno.EIO))
            continue
        if not data:
            unread += 1
            rest.append((exchange, 0))
            continue
        if ancillary:
            seconds, nanoseconds = unpack(ancillary[0][2])
            stamp = seconds * NS_PER_S + nanoseconds - offset_ns
            # Between the last poll and this read, or it is not to be believed (a stepped clock).
            if not previous_ns <= stamp <= polled:
                now = monotonic_ns()
                if not previous_ns <= stamp <= now:
                    stamp = now
                    own += 1
                    clock_reads.append(len(datas))
        else:
            stamp = monotonic_ns()
            own += 1
            clock_reads.append(len(datas))
        add_stamp(stamp)
        datas.append(data)
        if not chunked or len(data) > BIG_READ or len(data) < 4 or data.endswith(b"\r\n\r\n"):
            rest.append((exchange, data))
    return len(ready), len(ready) - unread, own, rest


def _compiled() -> Sweep | None:
    try:
        from loadcell.client._drain import sweep
    except ImportError:  # installed where there was no compiler
        return None
    return sweep


COMPILED: Final = _compiled()
DRAIN: Final = "python" if COMPILED is None else "compiled"  # which of the two the sockets of this installation are drained by
