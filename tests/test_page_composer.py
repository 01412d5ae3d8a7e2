"""What is written into the page: kept, sent, queued, taken back; each message once, none lost."""

from __future__ import annotations

import json
import signal
import threading
from typing import TYPE_CHECKING

import pytest
from browser_support import (
    NOBODY,
    PHONE,
    Watched,
    inputs,
    model_that,
    opened,
    restarted,
    says,
    write_session,
)
from log_support import Conversation
from playwright.sync_api import expect
from process_support import HostProcess

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from playwright.sync_api import Browser, Page, Route

LABEL = "#waiting li .label"
TO_SEND, UNKNOWN, QUEUED = "Waiting to be sent", "Sent, answer not known", "In the queue"
POSTS = "**/api/v1/agent/invocations/*"


def type_and_send(page: Page, text: str) -> None:
    page.locator("#message").fill(text)
    page.locator("#message").press("Enter")


def second_tab(watched: Watched) -> Page:
    """Open the page once more in the same browser."""
    page = watched.page.context.new_page()
    page.goto(watched.url)
    expect(page.locator("#state")).to_have_text("Connected")
    return page


# --- while the Host is away ---------------------------------------------------------------------


def test_what_is_written_without_a_host_waits(browser: Browser, tmp_path: Path) -> None:
    """It is said that it was not sent; nothing is said to run; it is sent in order, and once."""
    database = tmp_path / "session.sqlite3"
    with HostProcess(database) as first, opened(browser, first.url) as watched:
        page = watched.page
        first.kill()
        for n, text in enumerate(("one", "two", "three"), 1):
            watched.ask(text)
            expect(page.locator("#waiting li")).to_have_count(n)
            expect(page.locator("#message")).to_have_value("")
        expect(page.locator(LABEL)).to_have_text([TO_SEND] * 3)
        expect(page.locator("#held")).to_contain_text("was not sent yet")
        expect(page.locator("#held")).not_to_contain_text("connection broke")
        for absent in ("#live", "#stop", "#notice"):
            expect(page.locator(absent)).to_be_hidden()
        with restarted(database, first) as second:
            watched.answered("[turn 3] you said: three")
            expect(page.locator("#waiting")).to_be_hidden()
            expect(page.locator("#held")).to_be_hidden()
            assert inputs(second) == ["one", "two", "three"]
        watched.expected.append(NOBODY)


def test_what_was_not_seen_through_survives_a_reload(browser: Browser, tmp_path: Path) -> None:
    """A message that waits when the page is left is taken up by the next page, and runs once."""
    database = tmp_path / "session.sqlite3"
    with HostProcess(database) as first, opened(browser, first.url) as watched:
        page = watched.page
        first.kill()
        watched.ask("are you there?")
        expect(page.locator(LABEL)).to_have_text(TO_SEND)
        with restarted(database, first) as second:
            assert second.url == first.url
            page.reload()
            watched.answered("[turn 1] you said: are you there?")
            page.reload()
            watched.answered("[turn 1] you said: are you there?")
            expect(page.locator("#message")).to_have_value("")
            assert inputs(second) == ["are you there?"]
        watched.expected.append(NOBODY)


def test_what_waits_can_be_taken_back(browser: Browser) -> None:
    """Without a Host a message can be changed or removed; then it is not sent by itself."""
    with HostProcess(None) as first, opened(browser, first.url) as watched:
        page = watched.page
        first.kill()
        for text in ("never mind", "nor this"):
            watched.ask(text)
        page.get_by_role("button", name="Edit “never mind”").focus()
        for _ in range(3):  # held a little long, the key goes on in the field
            page.keyboard.down("Enter")
        page.keyboard.up("Enter")
        page.get_by_role("button", name="Remove “nor this”").press("Enter")
        expect(page.locator("#waiting")).to_be_hidden()
        expect(page.locator("#notice")).to_be_hidden()  # it never left: there is nothing to tell
        expect(page.locator("#message")).to_be_focused()
        with restarted(None, first) as second:
            expect(page.locator("#state")).to_have_text("Connected")
            expect(page.locator("#message")).to_have_value("never mind")
            page.keyboard.type(", but hello")
            page.keyboard.press("Enter")
            watched.answered("[turn 1] you said: never mind, but hello")
            assert inputs(second) == ["never mind, but hello"]
        watched.expected.append(NOBODY)


def test_what_was_sent_and_not_answered_is_told_apart(browser: Browser, tmp_path: Path) -> None:
    """Killed with a message in its queue, a Host leaves it unknown, and the next one runs it once.

    One that is written after that has not been sent, and is said to wait.
    """
    database, gate = tmp_path / "session.sqlite3", threading.Event()
    with (
        model_that([gate], says("two"), says("three")) as options,
        HostProcess(database, *options) as first,
        opened(browser, first.url) as watched,
    ):
        page = watched.page
        watched.ask("first")
        expect(page.locator("article.user")).to_have_count(1)
        watched.ask("second")
        expect(page.locator(LABEL)).to_have_text(QUEUED)
        first.kill()
        expect(page.locator(LABEL)).to_have_text(UNKNOWN)
        watched.ask("third")
        expect(page.locator(LABEL)).to_have_text([UNKNOWN, TO_SEND])
        expect(page.locator("#held")).to_contain_text("same id")
        with restarted(database, first, *options) as second:
            watched.answered("three")
            assert inputs(second) == ["first", "second", "third"]
        watched.expected += [NOBODY, "status of 404"]


def test_an_answer_that_breaks_off_is_asked_for_again(browser: Browser) -> None:
    """The Host has it and the connection broke: the same id is asked for, nothing runs twice."""
    with HostProcess(None) as host, opened(browser, host.url) as watched:
        page, seen = watched.page, list[str]()

        def cut(route: Route) -> None:
            if route.request.method != "POST" or seen:
                route.fallback()
                return
            seen.append(route.request.url)
            route.fetch()  # it arrives, and the answer does not
            route.abort("connectionreset")

        page.route(POSTS, cut)
        watched.ask("once")
        watched.answered("[turn 1] you said: once")
        expect(page.locator("#waiting")).to_be_hidden()
        assert inputs(host) == ["once"]
        watched.expected.append(NOBODY)


@pytest.mark.parametrize("notices", [True, False], ids=["seen to be gone", "swapped unseen"])
def test_no_message_reaches_another_history(
    browser: Browser, tmp_path: Path, notices: bool
) -> None:
    """What was written for one session is not run in another that is served in its place."""
    theirs = tmp_path / "theirs.sqlite3"
    write_session(theirs, Conversation().every_variant())
    with HostProcess(None) as first, opened(browser, first.url) as watched:
        page = watched.page
        watched.ask("hello")
        watched.answered("[turn 1] you said: hello")
        if not notices:
            with page.expect_response(lambda each: "/api/v1/sessions/" in each.url):
                watched.hide(is_hidden=True)  # it looks once more, and then no more by itself
        first.kill()
        if notices:
            for text in ("for the first alone", "this too"):
                watched.ask(text)
            expect(page.locator(LABEL)).to_have_count(2)
        with restarted(theirs, first) as second:
            before = second.session()["last_sequence"]
            if not notices:
                watched.ask("for the first alone")
            expect(page.locator("#replaced")).to_be_visible()
            expect(page.locator("#notice")).to_contain_text("another_history")
            for _ in range(2):
                expect(page.locator("#message")).to_have_value("for the first alone")
                expect(page.locator("#send")).to_be_enabled()
                if notices:  # the field has room for one: the other stays in the list
                    expect(page.locator(LABEL)).to_have_text("Not accepted: another_history")
                page.reload()
            assert second.session()["last_sequence"] == before
        watched.expected += [NOBODY, "status of 409", "status of 422"]


# --- the queue ----------------------------------------------------------------------------------


def test_the_queue_and_a_draft_survive_a_reload(browser: Browser) -> None:
    """What waits behind a Turn is listed again, what was being written is there, all runs once."""
    gate = threading.Event()
    with (
        model_that([gate, *says("one")], says("two"), says("three")) as options,
        HostProcess(None, *options) as host,
        opened(browser, host.url) as watched,
    ):
        page = watched.page
        watched.ask("first")
        expect(page.locator("article.user")).to_have_count(1)
        for n, text in enumerate(("second", "third"), 1):
            watched.ask(text)
            expect(page.locator(LABEL)).to_have_text([QUEUED] * n)
        page.locator("#message").fill("not sent yet")
        page.reload()
        expect(page.locator(LABEL)).to_have_text([QUEUED] * 2)
        expect(page.locator("#message")).to_have_value("not sent yet")
        gate.set()
        watched.answered("three")
        expect(page.locator("article.user .text")).to_have_text(["first", "second", "third"])
        assert len(host.session()["transcript"]) == 6


@pytest.mark.stress
def test_a_queue_longer_than_the_browser_has_connections(browser: Browser) -> None:
    """Ten messages behind a Turn: the page still follows, and they run in the order written."""
    gate, texts = threading.Event(), [f"message {n}" for n in range(10)]
    with (
        model_that([*says("Once")[:1], gate, *says(" upon")], *[says("more")] * 10) as options,
        HostProcess(None, *options) as host,
        opened(browser, host.url) as watched,
    ):
        page = watched.page
        watched.ask("first")
        for text in texts:
            type_and_send(page, text)
        expect(page.locator(LABEL)).to_have_text([QUEUED] * 10)
        page.reload()
        expect(page.locator("#live-text")).to_have_text("Once")
        expect(page.locator(LABEL)).to_have_text([QUEUED] * 10)
        gate.set()
        expect(page.locator("#timeline-count")).not_to_have_text("0 events")
        expect(page.locator("#waiting")).to_be_hidden()
        expect(page.locator("#running")).to_be_hidden()
        assert inputs(host) == ["first", *texts]


def test_stop_ends_the_turn_that_it_names(browser: Browser) -> None:
    """Also one that another client began; what is in the queue stays, and runs."""
    gate = threading.Event()
    with (
        model_that([*says("Once")[:1], gate], says("mine")) as options,
        HostProcess(None, *options) as host,
        opened(browser, host.url) as watched,
    ):
        page = watched.page
        other = threading.Thread(target=host.post, args=("other", "theirs"))
        other.start()
        try:
            expect(page.locator("#running")).to_contain_text("turn-1 is running")
            watched.ask("my own")
            expect(page.locator(LABEL)).to_have_text(QUEUED)
            page.get_by_role("button", name="Stop turn-1", exact=True).click()
            watched.answered("mine")
            expect(page.locator("#stop")).to_be_hidden()
        finally:
            gate.set()
            other.join()
        kinds = [entry["kind"] for entry in host.session()["transcript"]]
        assert kinds == ["user", "failure", "user", "assistant"]
        assert inputs(host) == ["theirs", "my own"]


def test_buttons_are_within_reach_and_apart(browser: Browser) -> None:
    """On a phone too: no finger's breadth of Send is Stop, and a long message hides no button."""
    gate = threading.Event()
    with (
        model_that([gate]) as options,
        HostProcess(None, *options) as host,
        opened(browser, host.url, PHONE) as watched,
    ):
        page = watched.page
        watched.ask("first")
        expect(page.locator("#stop")).to_be_visible()
        type_and_send(page, "long " * 100)
        expect(page.locator(LABEL)).to_have_text(QUEUED)
        boxes = {
            name: page.locator(selector).bounding_box()
            for name, selector in (
                ("stop", "#stop"),
                ("send", "#send"),
                ("list", "#waiting"),
                ("remove", "#waiting button:last-child"),
            )
        }
        stop, send, within, remove = (box for box in boxes.values() if box is not None)
        assert send["y"] - (stop["y"] + stop["height"]) >= 44
        assert remove["x"] + remove["width"] <= within["x"] + within["width"]
        assert remove["width"] >= 44


# --- two tabs -----------------------------------------------------------------------------------


def test_two_tabs_send_what_is_their_own(browser: Browser, tmp_path: Path) -> None:
    """Through a restart, each tab sees to its own messages, both see what runs, all runs once."""
    database, gate = tmp_path / "session.sqlite3", threading.Event()
    with (
        model_that([gate], says("two"), says("three")) as options,
        HostProcess(database, *options) as first,
        opened(browser, first.url) as watched,
    ):
        one, other = watched.page, second_tab(watched)
        watched.ask("first")
        for page in (one, other):
            expect(page.locator("#running")).to_contain_text("turn-1 is running")
        type_and_send(one, "second")
        expect(one.locator(LABEL)).to_have_text(QUEUED)
        type_and_send(other, "third")
        expect(other.locator(LABEL)).to_have_text(QUEUED)
        other.locator("#message").fill("a draft of the other")
        first.kill()
        for page in (one, other):
            expect(page.locator(LABEL)).to_have_text([UNKNOWN])
        with restarted(database, first, *options) as second:
            for page in (one, other):
                expect(page.locator("article.user")).to_have_count(3)
                expect(page.locator("#waiting")).to_be_hidden()
                expect(page.locator("#running")).to_be_hidden()
            assert sorted(inputs(second)) == ["first", "second", "third"]
            one.reload()
            expect(other.locator("#message")).to_have_value("a draft of the other")
            expect(one.locator("#message")).to_have_value("")
        watched.expected += [NOBODY, "status of 404"]


@pytest.mark.stress
def test_what_a_closed_tab_left_is_sent_once(browser: Browser, tmp_path: Path) -> None:
    """One of the tabs that are left takes it over; what it was writing goes to the next page."""
    database = tmp_path / "session.sqlite3"
    with HostProcess(database) as first, opened(browser, first.url) as watched:
        closed, rest = second_tab(watched), [watched.page, second_tab(watched)]
        first.kill()
        type_and_send(closed, "left behind")
        expect(closed.locator(LABEL)).to_have_text(TO_SEND)
        closed.locator("#message").fill("half a sen")
        closed.close()
        everywhere = [page.locator(LABEL) for page in rest]
        while sum(each.count() for each in everywhere) == 0:
            rest[0].evaluate("() => new Promise((done) => requestAnimationFrame(done))")
        with restarted(database, first) as second:
            for page in rest:
                expect(page.locator("article.user")).to_have_count(1)
                expect(page.locator("#waiting")).to_be_hidden()
                expect(page.locator("#message")).to_have_value("")
            next_page = second_tab(watched)
            expect(next_page.locator("#message")).to_have_value("half a sen")
            assert inputs(second) == ["left behind"]
        watched.expected.append(NOBODY)


@pytest.mark.stress
def test_a_tab_that_is_duplicated_begins_empty(browser: Browser) -> None:
    """What the browser copies for a tab opened from another does not copy what is written there."""
    with HostProcess(None) as first, opened(browser, first.url) as watched:
        page = watched.page
        page.locator("#message").fill("mine alone")
        page.reload()
        expect(page.locator("#message")).to_have_value("mine alone")
        with page.context.expect_page() as found:
            page.evaluate("() => { window.open(location.href); }")
        copy = found.value
        expect(copy.locator("#state")).to_have_text("Connected")
        copy.wait_for_function(
            "(own) => sessionStorage.getItem('sessiond.slot') !== own",
            arg=page.evaluate("sessionStorage.getItem('sessiond.slot')"),
        )
        expect(copy.locator("#message")).to_have_value("")
        copy.close()
        page.reload()
        expect(page.locator("#message")).to_have_value("mine alone")


# --- what is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (400, "not_json"),
        (409, "digest_mismatch"),
        (413, "body_too_large"),
        (422, "invocation_mismatch"),
        (500, "internal_error"),
        (503, "store_failed"),
        (502, None),
    ],
)
def test_a_refusal_is_told_and_loses_nothing(
    browser: Browser, host: HostProcess, status: int, code: str | None
) -> None:
    """The code is shown, the text is in the field, and sent again it is a new invocation."""
    with opened(browser, host.url) as watched:
        page, ids = watched.page, list[str]()

        def refuse(route: Route) -> None:
            if route.request.method != "POST":
                route.fallback()
                return
            ids.append(route.request.url)
            if len(ids) > 1:
                route.fallback()
                return
            body = "<html>" if code is None else json.dumps({"code": code, "detail": "no"})
            route.fulfill(status=status, body=body, content_type="application/problem+json")

        page.route(POSTS, refuse)
        watched.ask(f"try {status}")
        expect(page.locator("#notice code")).to_have_text(code or f"http_{status}")
        expect(page.locator("#message")).to_have_value(f"try {status}")
        expect(page.locator("#waiting")).to_be_hidden()
        page.keyboard.type(" again")
        expect(page.locator("#notice")).to_be_hidden()
        page.keyboard.press("Enter")
        watched.answered(f"you said: try {status} again")
        assert len(set(ids)) == 2
        assert f"try {status}" not in inputs(host)
        watched.expected += [f"status of {status}", "status of 404"]


@pytest.fixture(scope="module")
def host() -> Generator[HostProcess, None, None]:
    with HostProcess(None) as host:
        yield host


@pytest.mark.stress
def test_a_host_that_stops_has_not_taken_it(browser: Browser, tmp_path: Path) -> None:
    """Answered that the Host is shutting down, a message waits for the next one, as not sent."""
    database = tmp_path / "session.sqlite3"
    with HostProcess(database) as first, opened(browser, first.url) as watched:
        page = watched.page

        def stopping(route: Route) -> None:
            body = json.dumps({"code": "shutting_down", "detail": "the host is shutting down"})
            route.fulfill(status=503, body=body, content_type="application/problem+json")

        page.route(POSTS, stopping)
        watched.ask("for the next")
        expect(page.locator(LABEL)).to_have_text(TO_SEND)
        assert first.stop() == 0
        page.unroute(POSTS)
        expect(page.locator("#held")).to_contain_text("was not sent yet")
        with restarted(database, first) as second:
            watched.answered("[turn 1] you said: for the next")
            assert inputs(second) == ["for the next"]
        watched.expected += [NOBODY, "status of 503"]


@pytest.mark.stress
def test_a_message_of_a_megabyte(browser: Browser, tmp_path: Path) -> None:
    """One as long as the Host takes waits without it, survives a reload, and runs."""
    database, text = tmp_path / "session.sqlite3", "x" * (1_048_576 - len('{"input":""}'))
    with HostProcess(database) as first, opened(browser, first.url) as watched:
        page = watched.page
        first.kill()
        watched.put(text)
        page.locator("#message").press("Enter")
        expect(page.locator(LABEL)).to_have_text(TO_SEND)
        with restarted(database, first) as second:
            assert second.url == first.url
            page.reload()
            watched.answered("[turn 1] you said: xxx")
            expect(page.locator("#waiting")).to_be_hidden()
            assert inputs(second) == [text]
        watched.expected.append(NOBODY)


# --- keys ---------------------------------------------------------------------------------------


def test_keys_while_writing(browser: Browser, host: HostProcess) -> None:
    """Enter in a composition sends nothing, Escape loses nothing, a held Enter sends once."""
    with opened(browser, host.url) as watched:
        page, before = watched.page, inputs(host)
        field = page.locator("#message")
        field.click()
        enter = {"type": "rawKeyDown", "key": "Enter", "code": "Enter"}
        watched.devtools(
            ("Input.imeSetComposition", {"text": "に", "selectionStart": 1, "selectionEnd": 1}),
            ("Input.dispatchKeyEvent", {**enter, "windowsVirtualKeyCode": 13}),
            ("Input.insertText", {"text": "に"}),  # composed
        )
        expect(field).to_have_value("に")
        field.fill("a draft")
        page.keyboard.press("Escape")
        page.keyboard.press("Escape")
        expect(field).to_have_value("a draft")
        assert inputs(host) == before
        page.keyboard.down("Enter")
        page.keyboard.down("Enter")
        page.keyboard.up("Enter")
        watched.answered("you said: a draft")
        expect(field).to_have_value("")
        assert inputs(host) == [*before, "a draft"]


def test_a_host_that_pauses_has_it_once(browser: Browser, host: HostProcess) -> None:
    """Sent while the Host stands still, a message is said to be on its way, and runs once."""
    with opened(browser, host.url) as watched:
        page, before = watched.page, inputs(host)
        host.send(signal.SIGSTOP)
        watched.ask("patience")
        expect(page.locator("#waiting li")).to_have_count(1)
        expect(page.locator("#stop")).to_be_hidden()
        host.send(signal.SIGCONT)
        watched.answered("you said: patience")
        expect(page.locator("#waiting")).to_be_hidden()
        assert inputs(host) == [*before, "patience"]
