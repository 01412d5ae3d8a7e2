"""The body of a Chat Completions request."""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors.strict_json import quote
from actors.values import AssistantMessage, ToolMessage, UserMessage, message_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from actors.routes import ModelRequest
    from actors.values import Message, ToolCall, ToolSpec


def request_body(request: ModelRequest, model: str) -> bytes:
    """Return the JSON body that asks ``model`` for a streamed answer.

    Put together from the texts of its parts, which were checked when they were built: a history
    may be longer than one stored text can be.
    """
    members = [
        f'"model":{quote(model)}',
        '"stream":true,"stream_options":{"include_usage":true}',
        f'"messages":[{",".join(_messages(request))}]',
    ]
    if request.tools:
        members.append(f'"tools":[{",".join(map(_tool, request.tools))}]')
    return f"{{{','.join(members)}}}".encode()


def _messages(request: ModelRequest) -> Iterator[str]:
    """Yield each message's JSON; user messages in a row are one, joined by a blank line."""
    if request.system_prompt:
        yield f'{{"role":"system","content":{quote(request.system_prompt)}}}'
    said: list[str] = []
    for message in request.messages:
        if isinstance(message, UserMessage):
            said.append(message.content)
            continue
        yield from _user(said)
        said.clear()
        yield _message(message)
    yield from _user(said)


def _user(said: Sequence[str]) -> Iterator[str]:
    if said:
        yield message_json(UserMessage("\n\n".join(said)))


def _message(message: Message) -> str:
    """Return the JSON of one that is not a user's."""
    if isinstance(message, ToolMessage):
        return message_json(message)
    if not isinstance(message, AssistantMessage) or not message.tool_calls:
        return f'{{"role":"{message.role}","content":{quote(message.content)}}}'
    content = quote(message.content) if message.content else "null"
    calls = ",".join(map(_tool_call, message.tool_calls))
    return f'{{"role":"assistant","content":{content},"tool_calls":[{calls}]}}'


def _tool_call(call: ToolCall) -> str:
    function = f'{{"name":{quote(call.name)},"arguments":{quote(call.arguments)}}}'
    return f'{{"id":{quote(call.id)},"type":"function","function":{function}}}'


def _tool(spec: ToolSpec) -> str:
    return (
        f'{{"type":"function","function":{{"name":{quote(spec.name)},'
        f'"description":{quote(spec.description)},"parameters":{spec.parameters.text}}}}}'
    )
