"""What holds for every test."""

import signal

# Under nohup a hang-up is ignored, and whatever is started inherits that: tests that hang up on the product need it as a terminal gives it.
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
