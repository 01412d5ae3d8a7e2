"""The runtime as others see it: JSON for HTTP, a table for a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from actors.errors import SessiondError, StoreError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from actors.kernel.runtime import FiberView, RuntimeView
    from actors.strict_json import JsonValue


def runtime_value(view: RuntimeView) -> dict[str, JsonValue]:
    """Return a picture of the runtime as a plain JSON value, without any path."""
    return {
        "plugins": [_fiber_value(fiber, view) for fiber in view.fibers],
        "services": [
            {
                "name": service.key,
                "realm": service.realm,
                "plugin_id": service.fiber_id,
                "visible": service.is_visible,
            }
            for service in view.services
        ],
    }


def _fiber_value(fiber: FiberView, view: RuntimeView) -> dict[str, JsonValue]:
    provides = [each.key for each in view.services if each.fiber_id == fiber.fiber_id]
    return {
        "id": fiber.fiber_id,
        "parent_id": fiber.parent_id,
        "name": fiber.plugin,
        "state": fiber.state,
        "essential": fiber.is_essential,
        "requires": list(fiber.requires),
        "provides": list(provides),
        "effects": list(fiber.effects),
        "tasks": list(fiber.tasks),
        "reason": _reason(fiber),
    }


def _reason(fiber: FiberView) -> str | None:
    """Return why a plugin is PENDING or FAILED, None for one that is neither."""
    if fiber.state == "PENDING":
        return f"waits for {', '.join(fiber.missing)}" if fiber.missing else "about to load"
    if fiber.state == "FAILED" and fiber.failure is not None:
        return "; ".join(_public_text(cause) for cause in _leaves(fiber.failure))
    return None


def plugin_table(plugins: Sequence[Mapping[str, JsonValue]]) -> Iterator[str]:
    """Yield the plugins of a runtime's JSON value as lines of a table, one with its child below."""
    rows = [("ID", "PLUGIN", "STATE", "REQUIRES", "PROVIDES", "REASON")]
    depths: dict[JsonValue, int] = {}
    for plugin in plugins:
        depths[plugin["id"]] = depths.get(plugin["parent_id"], -1) + 1
        mark = "*" if plugin["essential"] else ""
        rows.append(
            (
                str(plugin["id"]),
                f"{'  ' * depths[plugin['id']]}{plugin['name']}{mark}",
                str(plugin["state"]),
                ", ".join(map(str, cast("list[str]", plugin["requires"]))) or "-",
                ", ".join(map(str, cast("list[str]", plugin["provides"]))) or "-",
                str(plugin["reason"] or ""),
            )
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield "  ".join(cells).rstrip() + "\n"
    yield "* the host ends when it fails\n"


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", error)
        return [leaf for each in group.exceptions for leaf in _leaves(each)]
    return [error]


def _public_text(error: BaseException) -> str:
    """Return what may be told to anyone: of foreign exceptions the kind alone."""
    if isinstance(error, StoreError):
        return error.fault
    return str(error) if isinstance(error, SessiondError) else type(error).__name__
