"""The session page as a person uses it: a real Chromium, a real Host, real keys."""

from __future__ import annotations

import json
import re
import threading
from typing import TYPE_CHECKING

import pytest
from browser_support import (
    PHONE,
    Watched,
    inputs,
    model_that,
    opened,
    says,
    wants,
    write_session,
)
from log_support import Conversation
from playwright.sync_api import expect
from process_support import HostProcess

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import Browser

MARKUP = "<img src=x onerror=\"document.title='run'\"><script>document.title='run'</script><b>b</b>"


def test_questions_are_typed_and_answered(browser: Browser) -> None:
    """Two Turns, typed and sent with Enter; the field is free again, the events are counted."""
    with HostProcess(None) as host, opened(browser, host.url) as watched:
        page = watched.page
        expect(page.get_by_text("Nothing was said yet.")).to_be_visible()
        expect(page.get_by_text("Write a message below")).to_be_visible()
        expect(page.locator("#message")).to_be_focused()
        expect(page.get_by_role("link", name="API reference")).to_have_attribute(
            "href", "/reference"
        )
        watched.ask("What do you remember?")
        watched.answered("[turn 1] you said: What do you remember?")
        expect(page.locator("#message")).to_have_value("")
        page.keyboard.type("one")
        page.keyboard.press("Shift+Enter")
        page.keyboard.type("two")
        page.keyboard.press("Control+Enter")
        watched.answered("[turn 2] you said: one two")
        assert inputs(host) == ["What do you remember?", "one\ntwo"]
        last = host.session()["last_sequence"]
        expect(page.locator("#timeline-count")).to_have_text(f"{last} events")
        expect(page.locator("#spoken")).to_have_text("Assistant: [turn 2] you said: one\ntwo")
        expect(page).to_have_title("default · sessiond")


def test_tool_calls_are_folded(browser: Browser) -> None:
    """A call shows its name alone; opened, its arguments and its result, or its error."""
    calls = wants("clock", '{"zone": "Asia/Tokyo"}'), wants("nope", "not json", "call-2")
    with (
        model_that(*calls, says("It is late.")) as options,
        HostProcess(None, *options) as host,
        opened(browser, host.url) as watched,
    ):
        page = watched.page
        watched.ask("How late is it?")
        watched.answered("It is late.")
        folds = page.locator("article.tool")
        expect(folds.locator("pre")).to_have_count(0)
        folds.nth(0).locator("summary").click()
        expect(folds.nth(0).get_by_label("Arguments")).to_have_text('{\n  "zone": "Asia/Tokyo"\n}')
        expect(folds.nth(0).get_by_label("Result")).to_contain_text('"zone": "Asia/Tokyo"')
        expect(folds.nth(0).locator(".outcome")).to_have_text("done")
        folds.nth(1).locator("summary").click()
        expect(folds.nth(1).get_by_label("Arguments")).to_have_text("not json")
        expect(folds.nth(1).get_by_label("Error")).to_contain_text("unknown_tool")
        expect(folds.nth(1).locator(".outcome")).to_have_text("failed")
        ended = page.locator(".event.tool_execution_completed .kind")
        expect(ended).to_have_text(["tool end", "tool failed"])
        failed = page.locator(".event.failed .kind")
        expect(failed).to_have_text("tool failed")
        colours = [each.evaluate("(e) => getComputedStyle(e).color") for each in ended.all()]
        assert colours[0] != colours[1]


def test_failures_are_told(browser: Browser) -> None:
    """A Turn that fails says its code; a request that is refused says so and keeps its text."""
    with (
        model_that() as options,
        HostProcess(None, *options) as host,
        opened(browser, host.url) as watched,
    ):
        page = watched.page
        watched.ask("Will it work?")
        expect(page.locator(".failure .reason code")).to_have_text("provider_error")
        expect(page.locator("#spoken")).to_contain_text("Failure: provider_error")
        expect(page.locator("#notice")).to_be_hidden()
        # Half a character is no text: the Host refuses it.
        watched.put("half \ud800")
        page.locator("#message").press("Enter")
        expect(page.locator("#notice")).to_contain_text("not_json")
        expect(page.locator("#message")).to_be_editable()
        assert page.locator("#message").evaluate("(field) => field.value.length") == 6
        watched.put("x" * 1_048_577)
        page.locator("#message").press("Enter")
        expect(page.locator("#notice")).to_contain_text("body_too_large")
        expect(page.locator("#message")).to_be_editable()
        assert inputs(host) == ["Will it work?"]
        watched.expected += ["status of 400", "status of 502"]


def test_what_runs_is_seen_and_stopped(browser: Browser) -> None:
    """The answer is read while it comes; Stop ends the Turn; what had been said is kept."""
    gate = threading.Event()
    with (
        model_that([*says("Once upon ", "a time")[:2], gate]) as options,
        HostProcess(None, *options) as host,
        opened(browser, host.url) as watched,
    ):
        page = watched.page
        expect(page.locator("#stop")).to_be_hidden()
        watched.ask("Tell me a story")
        expect(page.locator("#live-text")).to_have_text("Once upon a time")
        expect(page.locator("#state")).to_have_text("Running turn-1")
        page.locator("#stop").press("Enter")
        expect(page.locator(".stopped .reason")).to_have_text("This turn was stopped.")
        expect(page.locator("#spoken")).to_have_text("The turn was stopped.")
        expect(page.locator(".event.step_failed .kind")).to_have_text("stopped")
        expect(page.locator(".failure")).to_have_count(0)
        expect(page.locator("#live")).to_be_hidden()
        expect(page.locator("#stop")).to_be_hidden()
        expect(page.locator("#message")).to_be_focused()  # not lost with the button
        page.locator(".stopped summary").click()
        expect(page.locator(".stopped .folded .text")).to_have_text("Once upon a time")
        assert [entry["kind"] for entry in host.session()["transcript"]] == ["user", "failure"]


def test_the_queue_is_seen_and_left(browser: Browser) -> None:
    """What waits behind a Turn is listed, leaves no trace when cancelled, else runs in order."""
    gate = threading.Event()
    with (
        model_that([gate, *says("one")], says("three")) as options,
        HostProcess(None, *options) as host,
        opened(browser, host.url) as watched,
    ):
        page = watched.page
        watched.ask("first")
        expect(page.locator("#live")).to_contain_text("Working …", use_inner_text=True)
        for text in ("second", "third"):
            watched.ask(text)
            expect(page.locator("#waiting").get_by_text(text)).to_be_visible()
            expect(page.locator("#message")).to_have_value("")
        page.get_by_role("button", name="Edit “second”").click()
        expect(page.locator("#waiting li")).to_have_count(1)
        expect(page.locator("#message")).to_have_value("second")  # to be changed and sent again
        gate.set()
        watched.answered("three")
        expect(page.locator("#waiting")).to_be_hidden()
        assert inputs(host) == ["first", "third"]


def test_markup_stays_inert(browser: Browser) -> None:
    """Whatever users, models and tools say is text, in the transcript, the list, the payload."""
    call = wants(f"nope{MARKUP}"[:60], json.dumps({"a": MARKUP}))
    with (
        model_that(call, says(MARKUP)) as options,
        HostProcess(None, *options) as host,
        opened(browser, host.url) as watched,
    ):
        page = watched.page
        watched.ask(MARKUP)
        expect(page.locator(".user .text")).to_have_text(MARKUP)
        expect(page.locator(".assistant:not(.live) .text")).to_have_text(MARKUP)
        page.locator("summary").click()
        expect(page.get_by_label("Arguments")).to_contain_text("<img")
        for run in page.locator(".event.run").all():
            run.click()
        for event in host.session()["events"]:
            assert watched.event(event["sequence"]) == event["payload"]
        made = page.locator("main img, main script, main b, body > :not(header, main, p, noscript)")
        expect(made).to_have_count(0)
        expect(page).to_have_title("default · sessiond")


def test_a_payload_is_shown_as_recorded(browser: Browser, tmp_path: Path) -> None:
    """Numbers that a double cannot hold are shown as they stand; the text can be copied."""
    conversation = Conversation()
    odd: dict[str, object] = {
        "big": 2**63,
        "small": -0.0,
        "text": "ünïcode \x00 𝄞",
        "nested": [[], {}, None],
    }
    events = [conversation.input(), conversation.request(), conversation.chunk(odd)]
    database = tmp_path / "session.sqlite3"
    write_session(database, [*events, conversation.answer()])
    with (
        HostProcess(database) as host,
        opened(browser, host.url, permissions=["clipboard-read", "clipboard-write"]) as watched,
    ):
        page = watched.page
        watched.event(3)
        shown = page.locator("#payload-text").text_content()
        assert shown is not None
        assert '"big": 9223372036854775808,' in shown
        assert '"small": -0.0,' in shown
        assert json.loads(shown) == host.session()["events"][2]["payload"]
        expect(page.locator("#payload-entry")).to_be_hidden()
        page.locator("#payload-copy").click()
        expect(page.locator("#payload-copy")).to_have_text("Copied")
        assert page.evaluate("navigator.clipboard.readText()") == shown
        watched.event(4)
        page.locator("#payload-entry").click()
        expect(page.get_by_role("article", name="Assistant")).to_be_focused()


def test_the_keyboard_is_enough(browser: Browser) -> None:
    """Nothing needs a pointer: asking, unfolding, going through the events, opening, closing."""
    with (
        model_that(wants("clock", '{"zone": "Asia/Tokyo"}'), says("Late.")) as options,
        HostProcess(None, *options) as host,
        opened(browser, host.url) as watched,
    ):
        page = watched.page
        _tab_to(watched, "#message")
        page.keyboard.type("How late?")
        page.keyboard.press("Enter")
        watched.answered("Late.")
        page.evaluate("document.activeElement.blur()")
        _tab_to(watched, "summary")
        page.keyboard.press("Enter")
        expect(page.get_by_label("Result")).to_be_visible()
        _tab_to(watched, "#timeline")
        last = host.session()["last_sequence"]
        moves = (
            ("Home", "row-1"),
            ("ArrowDown", "row-2"),
            ("ArrowDown", "run-3"),
            ("ArrowRight", "run-3"),  # opens it
            ("ArrowRight", "row-3"),
            ("ArrowDown", "row-4"),
            ("ArrowLeft", "run-3"),
            ("ArrowLeft", "run-3"),  # closes it
            ("ArrowDown", "row-5"),
            ("End", f"row-{last}"),
            ("Home", "row-1"),
            ("ArrowDown", "row-2"),
        )
        for key, row in moves:
            page.keyboard.press(key)
            expect(page.locator("#timeline")).to_have_attribute("aria-activedescendant", row)
        page.keyboard.press("Enter")
        expect(page.locator("#payload-title")).to_have_text("Event 2")
        page.keyboard.press("ArrowUp")
        expect(page.locator("#payload-title")).to_have_text("Event 1")
        _tab_to(watched, "#payload-text")
        page.keyboard.press("Escape")
        expect(page.locator("#payload")).to_be_hidden()
        expect(page.locator("#timeline")).to_be_focused()


def _tab_to(watched: Watched, selector: str) -> None:
    """Press Tab until an element has the focus."""
    for _ in range(60):
        watched.page.keyboard.press("Tab")
        if watched.page.evaluate("(s) => document.activeElement.matches(s)", selector):
            return
    pytest.fail(f"Tab does not lead to {selector}")


def test_a_touch_screen_has_no_second_enter(browser: Browser) -> None:
    """On a touch screen Enter begins a new line, and the button sends."""
    with (
        HostProcess(None) as host,
        opened(browser, host.url, PHONE, has_touch=True, is_mobile=True) as watched,
    ):
        page = watched.page
        expect(page.get_by_text("Nothing was said yet.")).to_be_visible()
        expect(page.locator("#message")).not_to_be_focused()  # its keys would cover the page
        page.locator("#message").tap()
        page.keyboard.type("a")
        page.keyboard.press("Enter")
        page.keyboard.type("b")
        page.locator("#send").tap()
        watched.answered("[turn 1] you said: a b")
        assert inputs(host) == ["a\nb"]
        page.get_by_role("button", name="Timeline", exact=True).tap()
        page.locator(".event").first.tap()
        expect(page.locator("#payload-text")).to_have_text(re.compile('"turn_id": "turn-1"'))
