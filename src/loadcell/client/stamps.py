"""Kernel receive stamps: whether this kernel gives them, and keeping it at it.

Linux stamps packets only while some socket asks, and begins a moment after the first one did: without this, the first answers of a run
would come unstamped, and a quick look would say that there are none at all.
"""

import socket
from typing import Final

from loadcell.client.connection import ANCILLARY_SIZE, SO_TIMESTAMPNS

_TRIES: Final = 100
_PAUSE_S: Final = 0.001


class KernelStamps:
    """While this is open, received packets are stamped. `work`: they are; false where the kernel does not know how. Takes 0.1 s at most."""

    def __init__(self) -> None:
        self._pair: list[socket.socket] = []
        self.work = False
        with socket.create_server(("127.0.0.1", 0)) as listener:
            sender = socket.create_connection(listener.getsockname())
            receiver, _ = listener.accept()
        self._pair = [sender, receiver]
        receiver.settimeout(1.0)
        sender.settimeout(_PAUSE_S)
        try:
            receiver.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
            self.work = any(self._is_stamped(sender, receiver) for _ in range(_TRIES))
        except OSError:
            return

    def close(self) -> None:
        for end in self._pair:
            end.close()

    def _is_stamped(self, sender: socket.socket, receiver: socket.socket) -> bool:
        sender.sendall(b"x")
        _, ancillary, _, _ = receiver.recvmsg(16, ANCILLARY_SIZE)
        if not ancillary:
            # Nothing will come the other way: a pause that ends by itself.
            try:
                sender.recv(1)
            except TimeoutError:
                return False
        return bool(ancillary)


def kernel_stamps_work() -> bool:
    """Whether this kernel stamps what a TCP socket receives, tried on loopback."""
    stamps = KernelStamps()
    stamps.close()
    return stamps.work
