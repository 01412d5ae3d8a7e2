"""What a provider holds a Chat Completions request to: its shape, and the order of its messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jsonschema import Draft202012Validator

if TYPE_CHECKING:
    from collections.abc import Sequence

Schema = dict[str, Any]


def _closed(required: Schema, **optional: Any) -> Schema:
    return {
        "type": "object",
        "properties": {**required, **optional},
        "required": list(required),
        "additionalProperties": False,
    }


_name: Schema = {"type": "string", "minLength": 1}
_string: Schema = {"type": "string"}
_call = _closed(
    {
        "id": _name,
        "type": {"const": "function"},
        "function": _closed({"name": _name, "arguments": _string}),
    }
)
_calls: Schema = {"type": "array", "minItems": 1, "items": _call}
_messages: dict[str, Schema] = {
    "system": _closed({"role": _name, "content": _name}),
    "user": _closed({"role": _name, "content": _name}),
    "assistant": _closed({"role": _name, "content": _name}),
    # Null is for an answer that is nothing but tool calls; the empty string is for none.
    "assistant with tool calls": _closed(
        {"role": _name, "content": {**_name, "type": ["string", "null"]}, "tool_calls": _calls}
    ),
    "tool": _closed({"role": _name, "content": _string, "tool_call_id": _name}),
}
_parameters: Schema = {
    "type": "object",
    "properties": {"type": {"const": "object"}},
    "required": ["type"],
}
_tool = _closed(
    {
        "type": {"const": "function"},
        "function": _closed({"name": _name, "description": _string, "parameters": _parameters}),
    }
)
_body = _closed(
    {
        "model": _name,
        "stream": {"const": True},
        "stream_options": _closed({"include_usage": {"const": True}}),
        "messages": {"type": "array", "minItems": 1, "items": {"type": "object"}},
    },
    tools={"type": "array", "minItems": 1, "items": _tool},
)


def body_faults(body: Any) -> list[str]:
    """Return the rules that a request's body breaks; those of order only if its shape is right."""
    faults = _shape_faults(body, _body, "body")
    if faults:
        return faults
    names = [tool["function"]["name"] for tool in body.get("tools", [])]
    if len(set(names)) < len(names):
        faults.append("tools: two of a name")
    return faults + message_faults(body["messages"])


def message_faults(messages: Sequence[Any]) -> list[str]:
    """Return what is wrong with a conversation: each message for itself, else their order."""
    faults: list[str] = []
    for position, message in enumerate(messages):
        role = str(message.get("role"))
        kind = f"{role} with tool calls" if "tool_calls" in message else role
        if kind in _messages:
            faults += _shape_faults(message, _messages[kind], f"messages/{position}")
        else:
            faults.append(f"messages/{position}: there is no message of kind {kind!r}")
    return faults or _order_faults(messages)


def _shape_faults(value: Any, schema: Schema, place: str) -> list[str]:
    validator: Any = Draft202012Validator(schema)
    errors = validator.iter_errors(value)
    return [f"{place}{error.json_path[1:]}: {error.message}" for error in errors]


def _order_faults(messages: Sequence[Any]) -> list[str]:
    faults: list[str] = []
    open_ids: list[str] = []
    seen: set[str] = set()
    before = ""
    for position, message in enumerate(messages):
        role = message["role"]
        if role == "tool":
            if message["tool_call_id"] in open_ids:
                open_ids.remove(message["tool_call_id"])
            else:
                faults.append(f"messages/{position}: answers no open tool call")
        elif open_ids:
            faults.append(f"messages/{position}: tool calls before it are not answered: {open_ids}")
            open_ids = []
        if role == "system" and position > 0:
            faults.append(f"messages/{position}: a system message comes first")
        if role == before == "user":
            faults.append(f"messages/{position}: a second user message in a row")
        ids = [call["id"] for call in message.get("tool_calls", [])]
        if len(set(ids)) < len(ids) or seen & set(ids):
            faults.append(f"messages/{position}: a tool call id was used before")
        seen |= set(ids)
        open_ids += ids
        before = role
    if open_ids:
        faults.append(f"tool calls are not answered: {open_ids}")
    if before not in {"user", "tool"}:
        faults.append("the last message is not one to answer")
    return faults
