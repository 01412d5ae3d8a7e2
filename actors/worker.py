"""A thread of one task's own, which makes that task's blocking calls, one after the other.

trio's threads serve anybody: each call takes a token, a fresh context and a name for the thread.
For the writer, which does little but call and wait, that is a fifth of a durable append.
"""

from __future__ import annotations

import queue
import threading
from typing import TYPE_CHECKING, Any, TypeVar

import outcome
import trio
from attrs import define, field

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Self

_Argument = TypeVar("_Argument")
_Result = TypeVar("_Result")

_Job = tuple[trio.lowlevel.Task, "Callable[[], Any]"]


@define(eq=False)
class Worker:
    """The thread. A context manager, for one task of the trio run in which it is entered."""

    name: str
    _jobs: queue.SimpleQueue[_Job | None] = field(factory=queue.SimpleQueue[_Job | None])

    def __enter__(self) -> Self:
        token = trio.lowlevel.current_trio_token()
        # Nothing waits for it at the end of a process: whoever leaves in a hurry has reasons.
        threading.Thread(target=self._serve, args=(token,), name=self.name, daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._jobs.put(None)  # idle by now, as no call is ever left behind

    async def call(self, function: Callable[[_Argument], _Result], argument: _Argument) -> _Result:
        """Return what ``function(argument)`` returns in the thread, or raise what it raises.

        A checkpoint that cannot be cancelled: a call that was begun is waited for.
        """
        self._jobs.put((trio.lowlevel.current_task(), lambda: function(argument)))
        result: _Result = await trio.lowlevel.wait_task_rescheduled(_refuse_to_abort)
        return result

    def _serve(self, token: trio.lowlevel.TrioToken) -> None:
        while (job := self._jobs.get()) is not None:
            task, make_call = job
            token.run_sync_soon(trio.lowlevel.reschedule, task, outcome.capture(make_call))


def _refuse_to_abort(_raise_cancel: object) -> trio.lowlevel.Abort:
    return trio.lowlevel.Abort.FAILED
