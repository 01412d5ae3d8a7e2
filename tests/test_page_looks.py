"""The session page for everyone: no finding of axe-core, however it is looked at."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from browser_support import (
    PHONE,
    WIDE,
    Watched,
    findings,
    model_that,
    opened,
    says,
    write_session,
)
from log_support import Conversation
from playwright.sync_api import expect
from process_support import HostProcess

if TYPE_CHECKING:
    from collections.abc import Generator

    from playwright.sync_api import Browser

TEXT = f"an `inline` and\n```python\n{'long ' * 60}\n```\nwith \u202eunseen\x1b" + "w" * 20_000


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Generator[HostProcess, None, None]:
    """A Host whose session has every kind of entry, and whose model never comes to its end."""
    database = tmp_path_factory.mktemp("looks") / "session.sqlite3"
    conversation = Conversation()
    events = [*conversation.every_variant(), conversation.input(TEXT), conversation.request()]
    write_session(
        database, [*events, conversation.chunk(), conversation.chunk(), conversation.answer(TEXT)]
    )
    endless = [*says("It began")[:1], threading.Event()]
    with model_that(*[endless] * 5) as options, HostProcess(database, *options) as host:
        yield host


@contextmanager
def turn_running(watched: Watched) -> Generator[None, None, None]:
    """Have a Turn that runs, stopped at the end."""
    watched.ask("begin, please")
    expect(watched.page.locator("#live-text")).to_have_text("It began")
    try:
        yield
    finally:
        watched.page.locator("#stop").click()
    expect(watched.page.locator("#live")).to_be_hidden()


def look(watched: Watched, view: str) -> list[str]:
    """Return what is found in a view, light and dark."""
    page = watched.page
    if page.get_by_role("group", name="View").is_visible():
        page.get_by_role("button", name=view, exact=True).click()
    found: list[str] = []
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        found += [f"{scheme}: {each}" for each in findings(page)]
    return found


@pytest.mark.parametrize("size", [WIDE, PHONE], ids=["wide", "phone"])
def test_nothing_is_found(browser: Browser, host: HostProcess, size: tuple[int, int]) -> None:
    """With a Turn running, folds open, a payload shown, something refused; nothing overflows."""
    with (
        opened(browser, host.url, size) as watched,
        turn_running(watched),
    ):
        page = watched.page
        page.locator("#transcript").press("Home")
        page.locator("summary").first.click()
        expect(page.get_by_label("Result")).to_be_visible()
        assert look(watched, "Transcript") == []
        page.locator("#transcript").press("End")
        page.locator("#message").fill("in the queue")
        page.locator("#send").click()
        expect(page.locator("#waiting li")).to_have_count(1)
        watched.put("x" * 1_048_577)
        page.locator("#message").press("Enter")
        expect(page.locator("#notice")).to_be_visible()
        watched.put("")
        if size == PHONE:  # a wide screen shows all of it at once
            assert look(watched, "Transcript") == []
            assert look(watched, "Timeline") == []
        page.locator(".event").last.click()
        assert look(watched, "Timeline") == []
        page.evaluate("location.hash = '#event-21'")  # within a run of chunks
        expect(page.locator("#payload-type")).to_have_text("model_chunk_recorded")
        expect(page.locator(".event.within").first).to_be_visible()
        assert look(watched, "Timeline") == []
        page.evaluate("location.hash = '#event-foo'")
        expect(page.locator("#missing")).to_be_visible()
        assert look(watched, "Timeline") == []
        wider = "document.documentElement.scrollWidth > innerWidth"
        assert not page.evaluate(wider)
        page.get_by_role("button", name="Remove “in the queue”").click()
        expect(page.locator("#waiting")).to_be_hidden()


def test_nothing_is_found_where_nothing_was_said(browser: Browser) -> None:
    """Nor in an empty session, nor on the page of the API that the session page leads to."""
    with HostProcess(None) as host, opened(browser, host.url) as watched:
        page = watched.page
        expect(page.get_by_text("Nothing was said yet.")).to_be_visible()
        assert look(watched, "Transcript") == []
        page.get_by_role("link", name="API reference").click()
        expect(page.get_by_role("heading", name="schemas", exact=True)).to_be_visible()
        assert look(watched, "Transcript") == []
        page.get_by_role("link", name="Session page").click()
        expect(page.get_by_text("Nothing was said yet.")).to_be_visible()


def test_a_narrow_screen_has_one_view_at_a_time(browser: Browser, host: HostProcess) -> None:
    """On a phone the views are switched, and each keeps its place; the composer is in both."""
    with opened(browser, host.url, PHONE) as watched, turn_running(watched):
        page = watched.page
        page.locator("#transcript").press("Home")
        first = page.locator("article[aria-posinset='1']")
        expect(first).to_be_in_viewport()
        page.get_by_role("button", name="Timeline", exact=True).click()
        expect(page.locator("#transcript")).to_be_hidden()
        expect(page.locator(".event").last).to_be_in_viewport()
        expect(page.locator("#message")).to_be_visible()
        expect(page.locator("#stop")).to_be_visible()
        page.get_by_role("button", name="Transcript", exact=True).click()
        expect(page.locator("#timeline")).to_be_hidden()
        expect(first).to_be_in_viewport()


@pytest.mark.stress
def test_motion_is_left_out_where_it_is_not_wanted(browser: Browser, host: HostProcess) -> None:
    """What pulses while a Turn runs stands still for who asked for less motion."""
    for wanted, names in (("no-preference", "pulse"), ("reduce", "none")):
        with opened(browser, host.url, reduced_motion=wanted) as watched, turn_running(watched):
            expect(watched.page.locator(".pulse")).to_have_css("animation-name", names)
