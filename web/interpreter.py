"""How Python itself is set for a Host: it belongs to the process, so no library may do it."""

from __future__ import annotations

import gc
import sys

SWITCH_INTERVAL_S = 0.0001
"""How long a thread that waits for Python's lock lets another one go on. Python's own 5 ms, paid
several times a transaction, would all but stop the writer beside a busy event loop, and a tool
that computes in its thread would hold up the loop as long each time. Chosen by measurement, see
docs/performance.md."""


def share_evenly() -> None:
    """Have threads take turns often enough for the writer to keep pace with a busy loop."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)


def settle() -> None:
    """Take all that exists by now out of the garbage collector's sight: it stays to the end.

    To be called once the modules are imported and the session is loaded. A full collection would
    visit each of their objects again and again, and hold up the event loop meanwhile.
    """
    gc.collect()
    gc.freeze()
