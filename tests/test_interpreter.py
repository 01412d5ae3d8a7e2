"""How Python is set in a Host, asked of real processes."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from process_support import PATIENCE_S, TREE

HOST = """
import gc, json, os, signal, sys
import trio
from actors.kernel.fibers import Plugin
from actors.plugins import STOPPING
from web.host import HostConfig, run_host

async def set_up(context, config):
    loading = gc.get_freeze_count()

    async def tell(_):
        frozen = {"loading": loading, "serving": gc.get_freeze_count()}
        print(json.dumps({"switch": sys.getswitchinterval(), **frozen}), flush=True)

    context.listen(STOPPING, tell)

trio.run(run_host, HostConfig(port=0, plugins=((Plugin("teller", set_up), None),)))
"""


def test_a_running_host_has_python_set_for_it() -> None:
    """Threads take turns fifty times as often; the collector does not see what was loaded."""
    with subprocess.Popen(
        [sys.executable, "-c", HOST], cwd=TREE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as host:
        try:
            assert host.stdout is not None
            assert host.stdout.readline().startswith(b"sessiond listening on ")
            host.terminate()
            output, errors = host.communicate(timeout=PATIENCE_S)
        finally:
            host.kill()
    assert host.returncode == 0, errors
    told = json.loads(output)
    assert told["switch"] == pytest.approx(0.0001)
    # Nothing before all is there, which CPython's own start may have frozen a little of.
    assert told["loading"] * 10 < told["serving"]
