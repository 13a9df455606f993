"""Progress whose reader leaves ends nothing."""

import os
import subprocess
import sys

from loadcell.cli.lasting import lasting


def test_it_writes_as_long_as_anybody_reads() -> None:
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as stream:
        told = lasting(stream)
        told.write("one\n")
        told.flush()
        assert os.read(reading, 100) == b"one\n"
        assert not told.isatty()
        os.close(reading)
        for _ in range(3):
            told.write("two\n")
            told.flush()


def test_a_stream_that_was_never_there() -> None:
    told = lasting(None)
    assert told.write("x") == 1
    told.flush()
    assert not told.isatty()


def test_nothing_is_left_for_the_interpreters_last_flush() -> None:
    program = (
        "import sys, time; from loadcell.cli.lasting import lasting; told = lasting(sys.stderr); sys.stdin.read()\n"
        "told.write('x\\n'); told.flush(); told.write('y\\n'); told.flush(); sys.exit(7)"
    )
    process = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stderr is not None
    assert process.stdin is not None
    process.stderr.close()
    process.stdin.close()
    assert process.wait(30) == 7
