"""How the demo tells what happens: short plain lines, coloured on a terminal alone."""

from __future__ import annotations

import json
import os
import sys
from itertools import groupby
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

Event = dict[str, Any]

_EXCERPT_LENGTH = 78


def say(text: str = "", style: str = "") -> None:
    """Print a line; ``style``, an ANSI one, shows on a terminal alone."""
    if style and sys.stdout.isatty() and "NO_COLOR" not in os.environ:
        text = f"\x1b[{style}m{text}\x1b[0m"
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def scene(text: str) -> None:
    """Print what comes next."""
    say()
    say(f"== {text}", "1")


def command(*arguments: str | Path) -> None:
    """Print a command as it is run."""
    say(f"$ sessiond {' '.join(map(str, arguments))}", "36")


def tell(events: Iterable[Event]) -> None:
    """Print events, a line each; chunks that follow one another share theirs."""
    for is_chunk, group in groupby(events, lambda each: each["type"] == "model_chunk_recorded"):
        run = list(group)
        if is_chunk:
            text = " ".join("".join(map(_chunk_text, run)).split())
            numbers = f"{run[0]['sequence']}-{run[-1]['sequence']}"
            counted = "1 chunk" if len(run) == 1 else f"{len(run)} chunks"
            say(f"  {numbers:>9}  {_excerpt(f'{counted}: {text}')}", "2")
            continue
        for event in run:
            say(f"  {event['sequence']:>9}  {_excerpt(_told(event['type'], event['payload']))}")


def _told(event_type: str, payload: Event) -> str:
    match event_type:
        case "user_input_accepted":
            return f"{payload['turn_id']}, the user: {payload['messages'][0]['content']}"
        case "model_request_recorded":
            return f"{payload['step_id']}: the model is asked"
        case "assistant_message_committed":
            message = payload["message"]
            calls = ", ".join(call["name"] for call in message["tool_calls"])
            return f"the model {f'calls {calls}' if calls else 'has answered'}"
        case "tool_execution_started":
            call = payload["call"]
            return f"{call['name']} starts: {call['arguments']}"
        case "tool_execution_completed":
            answer = payload["result"] if "result" in payload else payload["error"]
            return f"{payload['call_id']} is answered: {_json(answer)}"
        case _:
            return f"{payload['step_id']} failed, {payload['code']}: {payload['message']}"


def _chunk_text(event: Event) -> str:
    return str(event["payload"]["chunk"]["choices"][0]["delta"]["content"])


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _excerpt(text: str) -> str:
    return text if len(text) <= _EXCERPT_LENGTH else f"{text[:_EXCERPT_LENGTH]}..."
