"""A kernel timer that an event loop can watch: absolute, on CLOCK_MONOTONIC, exact to microseconds.

Event loops round their timers to 1 ms (libuv) or wake through epoll's millisecond timeout; a simulated step of 300 µs cannot live
with that. Python has timerfd from 3.13 on; this binds the two libc calls.
"""

import ctypes
import os
from contextlib import suppress
from typing import Final

_CLOCK_MONOTONIC: Final = 1
_TFD_NONBLOCK: Final = os.O_NONBLOCK
_TFD_CLOEXEC: Final = os.O_CLOEXEC
_TFD_TIMER_ABSTIME: Final = 1
_NS: Final = 1_000_000_000


class _Itimerspec(ctypes.Structure):
    _fields_ = (
        ("interval_s", ctypes.c_long),
        ("interval_ns", ctypes.c_long),
        ("value_s", ctypes.c_long),
        ("value_ns", ctypes.c_long),
    )


class TimerFd:
    """`fd` becomes readable at the armed moment; `clear()` after it did. Raises OSError when the kernel refuses."""

    def __init__(self) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self.fd: int = libc.timerfd_create(_CLOCK_MONOTONIC, _TFD_NONBLOCK | _TFD_CLOEXEC)
        if self.fd < 0:
            errno = ctypes.get_errno()
            raise OSError(errno, os.strerror(errno))
        self._settime = libc.timerfd_settime
        self._value = _Itimerspec(0, 0, 0, 0)
        self._ref = ctypes.byref(self._value)

    def arm(self, at_ns: int) -> None:
        """Fire at `at_ns` (at once when that has passed); replaces what was armed."""
        value = self._value
        value.value_s, value.value_ns = divmod(at_ns, _NS)
        if self._settime(self.fd, _TFD_TIMER_ABSTIME, self._ref, None):
            errno = ctypes.get_errno()
            raise OSError(errno, os.strerror(errno))

    def clear(self) -> None:
        """Take the expiry off the descriptor, if there is one."""
        with suppress(BlockingIOError):  # re-armed between the wake-up and this read
            os.read(self.fd, 8)

    def close(self) -> None:
        os.close(self.fd)
