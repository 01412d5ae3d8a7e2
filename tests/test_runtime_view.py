"""The runtime as others see it: over HTTP, and as a table in a shell."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from process_support import HostProcess, error_line, sessiond

from actors.errors import ConfigurationError, StoreError
from actors.kernel.fibers import Plugin
from actors.kernel.keys import ServiceKey
from actors.kernel.runtime import open_runtime
from actors.validation import document_fault
from web.runtime import plugin_table, runtime_value

if TYPE_CHECKING:
    from pathlib import Path

    from actors.kernel.context import Context

SOME_PATH = "/home/somebody/session.sqlite3"
NEVER = ServiceKey[int]("never")
CHILD = ServiceKey[int]("child")


async def stand(context: Context, child: Plugin[None] | None) -> None:
    if child is not None:
        context.mount(child, None)


async def fail(_context: Context, error: BaseException) -> None:
    raise error


def plugin_of(value: dict[str, Any], name: str) -> dict[str, Any]:
    (plugin,) = [each for each in value["plugins"] if each["name"] == name]
    return plugin


async def test_every_state_has_its_reason() -> None:
    """What waits says for what, what failed says why; neither names a file or a foreign text."""
    grand: Plugin[None] = Plugin("child", stand, requires=(NEVER,))
    both = ExceptionGroup("two", [ConfigurationError("bad option"), KeyError(SOME_PATH)])
    async with open_runtime() as runtime:
        runtime.mount(Plugin("parent", stand), grand)
        runtime.mount(Plugin("disk", fail), StoreError("not a database", SOME_PATH))
        runtime.mount(Plugin("both", fail), both)
        await runtime.wait_settled()
        value = cast("dict[str, Any]", runtime_value(runtime.inspect()))
    assert document_fault("runtime-response", value) is None
    assert SOME_PATH not in str(value)
    parent, child = plugin_of(value, "parent"), plugin_of(value, "child")
    assert (parent["state"], parent["reason"], parent["parent_id"]) == ("ACTIVE", None, None)
    assert (child["state"], child["reason"]) == ("PENDING", "waits for never")
    assert child["parent_id"] == parent["id"]
    assert plugin_of(value, "disk")["reason"] == "not a database"
    assert plugin_of(value, "both")["reason"] == "bad option; KeyError"
    table = "".join(plugin_table(value["plugins"]))
    lines = {line.split()[1]: line for line in table.splitlines()[:-1]}
    assert f"{child['id']}   " in table
    assert "  child " in lines["child"]  # below its parent
    assert lines["child"].endswith("waits for never")
    assert lines["disk"].split()[2] == "FAILED"


def test_a_running_host_shows_its_plugins(tmp_path: Path) -> None:
    """All that a Host is made of is plugins, every one ACTIVE, and the shell shows the same."""
    with HostProcess(tmp_path / "session.sqlite3") as host:
        with host.client() as client:
            answer = client.get("/api/v1/runtime")
        shown = sessiond("plugins", "--url", host.url)
        assert host.stop() == 0
    value = answer.json()
    assert answer.status_code == 200
    assert document_fault("runtime-response", value) is None
    names = [plugin["name"] for plugin in value["plugins"]]
    assert set(names) >= {"models", "session", "agent", "invocations", "http"}
    assert {plugin["state"] for plugin in value["plugins"]} == {"ACTIVE"}
    assert "session log" in plugin_of(value, "session")["effects"]
    assert (shown.returncode, shown.stderr) == (0, "")
    assert [line.split()[1].rstrip("*") for line in shown.stdout.splitlines()[1:-1]] == names


def test_plugins_without_a_host(tmp_path: Path) -> None:
    """Where no Host answers, the command says so in one line."""
    with HostProcess(tmp_path / "session.sqlite3") as host:
        url = host.url
        assert host.stop() == 0
    assert url in error_line(sessiond("plugins", "--url", url))
