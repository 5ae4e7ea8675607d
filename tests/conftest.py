from __future__ import annotations

import signal


def pytest_configure():
    """Let Ctrl-C work in the programs that tests start: a shell starts what it runs in the background without it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
