"""The writer's thread: one, in order, never left behind."""

from __future__ import annotations

import threading

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from actors.worker import Worker


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A name that no other test's thread has, which may be on its way out."""
    return request.node.name


def threads(name: str) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == name]


async def test_all_calls_are_made_in_one_thread_of_its_own(name: str) -> None:
    """Whatever is called runs in the same thread, which is not the event loop's."""
    with Worker(name) as worker:
        used = {await worker.call(lambda _: threading.get_ident(), n) for n in range(5)}
        assert used == {thread.ident for thread in threads(name)}
        assert threading.get_ident() not in used


async def test_a_call_returns_and_raises_what_the_function_does(name: str) -> None:
    """The result and the exception come out as they were, and the thread lives on after both."""
    with Worker(name) as worker:
        error = OSError("no")

        def refuse(_: object) -> None:
            raise error

        assert await worker.call(len, "four") == 4
        with pytest.raises(OSError, match="no") as raised:
            await worker.call(refuse, None)
        assert raised.value is error
        assert await worker.call(len, "") == 0


async def test_a_begun_call_is_waited_for_whatever_is_cancelled(name: str) -> None:
    """A cancelled caller gets its result; the function was not left running behind its back."""
    let_go, begun = threading.Event(), trio.Event()
    token = trio.lowlevel.current_trio_token()
    results: list[str] = []

    def hold(result: str) -> str:
        token.run_sync_soon(begun.set)
        let_go.wait()
        return result

    async def call(worker: Worker) -> None:
        results.append(await worker.call(hold, "done"))

    try:
        with Worker(name) as worker:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(call, worker)
                await begun.wait()
                nursery.cancel_scope.cancel()
                with trio.CancelScope(shield=True):
                    await wait_all_tasks_blocked()
                ended_early = bool(results)
                let_go.set()
    finally:
        let_go.set()
    assert not ended_early
    assert results == ["done"]


async def test_the_thread_ends_with_the_block(name: str) -> None:
    """Also after an error in the block, no thread is left."""

    async def fail() -> None:
        with Worker(name) as worker:
            running.extend(threads(name))
            await worker.call(len, "")
            raise ValueError("the block's own")

    running: list[threading.Thread] = []
    with pytest.raises(ValueError, match="own"):
        await fail()
    (thread,) = running
    await trio.to_thread.run_sync(thread.join, 30)
    assert not thread.is_alive()
