from select import epoll

from loadcell.client.sweep import HotStream, Swept

def sweep(epoll: epoll, hot: dict[int, HotStream], previous_ns: int, offset_ns: int, /) -> Swept: ...
