"""Signals that are kept for whoever waits for them, and passed on. Light, because it has to come before all else.

A signal goes to any thread that does not block it, and a thread blocks what the one that started it did. So they have
to be blocked before NumPy is imported, which starts threads.
"""

from __future__ import annotations

import signal

PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
KEPT = (*PASSED_ON, signal.SIGCHLD)


def keep_signals() -> None:
    """Let signals wait until somebody asks for them, in this thread and in those that it starts."""
    signal.pthread_sigmask(signal.SIG_BLOCK, KEPT)
