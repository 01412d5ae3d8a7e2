"""The open page follows its session: through restarts, at little cost, the reader's place kept."""

from __future__ import annotations

import signal
import threading
from contextlib import ExitStack
from itertools import pairwise
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

import pytest
from browser_support import (
    HASTE,
    NOBODY,
    PHONE,
    WIDE,
    Watched,
    model_that,
    opened,
    restarted,
    says,
    write_session,
)
from log_support import Conversation
from playwright.sync_api import expect
from process_support import HostProcess

from benchmarks.workload import session_events

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import Browser, Response

    from actors.events import Event

MANY_N = 20_000
NODES_MAX = 2_500
"""What the document may hold, however long the session is."""

NO_GAP = """(view) => {
  const { left, width, top, height } = document.querySelector(view).getBoundingClientRect();
  return [0.02, 0.3, 0.6, 0.95].every((part) => {
    const found = document.elementFromPoint(left + width / 2, top + height * part);
    return found.closest(".event, article, .to-end") !== null;
  });
}"""
"""Tells whether there is a row wherever one looks."""

SCROLL_UP = """async () => {
  const view = document.querySelector("#transcript");
  const frame = () => new Promise(requestAnimationFrame);
  const tops = () =>
    new Map([...view.querySelectorAll("article")].map((e) => [e, e.getBoundingClientRect().top]));
  const jumps = [];
  for (let step = 0; step < 60; step += 1) {
    const before = tops();
    view.scrollTop -= 150;
    await frame();
    await frame();
    const moves = [...tops()].filter(([e]) => before.has(e)).map(([e, top]) => top - before.get(e));
    if (moves.length === 0) jumps.push("nothing stayed");
    jumps.push(...moves.filter((move) => Math.abs(move - 150) > 1));
  }
  return jumps;
}"""

HEIGHTS_LAW = """async () => {
  const { Heights } = await import("/static/heights.js");
  const [tree, plain] = [new Heights(), []];
  let seed = 1;
  const random = (n) => (seed = (seed * 48271) % 2147483647) % n;
  const faults = [];
  for (let round = 0; round < 2000; round += 1) {
    const height = 1 + random(90);
    if (plain.length > 0 && random(3) === 0) {
      const index = random(plain.length);
      tree.set(index, height);
      plain[index] = height;
    } else {
      tree.push(height);
      plain.push(height);
    }
    const index = random(plain.length + 1);
    const offset = plain.slice(0, index).reduce((sum, each) => sum + each, 0);
    if (tree.offset(index) !== offset) faults.push(`offset ${index}`);
    if (index < plain.length) {
      for (const within of [offset, offset + plain[index] - 1]) {
        if (tree.find(within) !== index) faults.push(`find ${within}`);
      }
    }
  }
  if (tree.find(-1) !== 0 || tree.find(1e9) !== plain.length - 1) faults.push("outside");
  return faults;
}"""


def after_of(response: Response) -> int:
    return int(parse_qs(urlsplit(response.url).query)["after"][0])


# --- restarts -----------------------------------------------------------------------------------


def test_a_restart_under_the_open_page(browser: Browser, tmp_path: Path) -> None:
    """Killed while a model answers, the Host comes back, and the page goes on where it was.

    While nobody answers it says so, and does not pretend that a Turn runs or could be stopped.
    """
    database, gate = tmp_path / "session.sqlite3", threading.Event()
    with (
        model_that([*says("Once upon")[:1], gate], says("two")) as options,
        HostProcess(database, *options) as first,
        opened(browser, first.url) as watched,
    ):
        page = watched.page
        watched.ask("one")
        expect(page.locator("#live-text")).to_have_text("Once upon")
        expect(page.locator("#running")).to_contain_text("turn-1 is running")
        first.kill()
        expect(page.locator("#state")).to_contain_text("Not connected")
        expect(page.locator("#live-doing")).to_have_text("Broken off: the host is away")
        expect(page.locator("#stop")).to_be_hidden()
        with restarted(database, first, *options):
            expect(page.locator(".failure .reason code")).to_have_text("interrupted")
            expect(page.locator("#state")).to_have_text("Connected")
            expect(page.locator("#replaced")).to_be_hidden()
            watched.ask("two, please")
            watched.answered("two")
        watched.expected.append(NOBODY)


@pytest.mark.stress
def test_a_host_that_comes_and_goes(browser: Browser, tmp_path: Path) -> None:
    """Through five restarts, each in the middle of a Turn, the page ends with what is on record."""
    database, gate = tmp_path / "session.sqlite3", threading.Event()
    with (
        model_that(*[[*says("Begun")[:1], gate]] * 5, says("done")) as options,
        HostProcess(database, *options) as first,
        opened(browser, first.url) as watched,
        ExitStack() as hosts,
    ):
        page, host = watched.page, first
        for n in range(1, 6):
            watched.ask(f"try {n}")
            expect(page.locator("#live-text")).to_have_text("Begun")
            host.kill()
            host = hosts.enter_context(restarted(database, first, *options))
            expect(page.locator("article").last).to_have_attribute("aria-setsize", str(2 * n))
        watched.ask("the last")
        watched.answered("done")
        expect(page.locator("article").last).to_have_attribute("aria-setsize", "12")
        kinds = [entry["kind"] for entry in host.session()["transcript"]]
        assert kinds == ["user", "failure"] * 5 + ["user", "assistant"]
        watched.expected.append(NOBODY)


def test_another_history_is_loaded_anew(browser: Browser) -> None:
    """A Host without a file forgets; so does the page, and says so.

    Whether the new history is shorter than what the page knew, or longer.
    """
    with HostProcess(None) as first, opened(browser, first.url) as watched:
        page = watched.page
        watched.ask("hello and good day")
        watched.answered("[turn 1] you said: hello and good day")
        first.kill()
        for texts in (["short"], ["one", "two", "three"]):
            with restarted(None, first) as host:
                for index, text in enumerate(texts):
                    assert host.post(f"i-{index}", text).status_code == 200
                watched.answered(f"you said: {texts[-1]}")
                expect(page.locator("#replaced")).to_be_visible()
                expect(page.locator("#payload")).to_be_hidden()
                page.get_by_role("button", name="Understood").click()
                expect(page.locator("article.user .text")).to_have_text(texts)
                last = host.session()["last_sequence"]
                expect(page.locator("#timeline-count")).to_have_text(f"{last} events")
                watched.event(1)  # open when this history is gone
        watched.expected += [NOBODY, "status of 409", "status of 422"]


@pytest.mark.stress
def test_a_host_that_stands_still_is_away(browser: Browser) -> None:
    """One that takes connections and answers nothing is not called connected; then it goes on."""
    with HostProcess(None) as host, opened(browser, host.url) as watched:
        page = watched.page
        page.add_init_script(HASTE)
        page.reload()
        expect(page.locator("#state")).to_have_text("Connected")
        host.send(signal.SIGSTOP)
        expect(page.locator("#state")).to_contain_text("Not connected")
        watched.ask("are you there?")
        expect(page.locator("#waiting li .label")).to_have_text("Waiting to be sent")
        host.send(signal.SIGCONT)
        watched.answered("[turn 1] you said: are you there?")
        expect(page.locator("#waiting")).to_be_hidden()


# --- at little cost -----------------------------------------------------------------------------


def test_following_costs_what_is_new(browser: Browser, tmp_path: Path) -> None:
    """After the first answer, an unchanged session is a 304, a grown one only the new events."""
    database = tmp_path / "session.sqlite3"
    write_session(database, Conversation().every_variant())
    with HostProcess(database) as host, opened(browser, host.url) as watched:
        known = host.session()["last_sequence"]
        watched.next_read()
        watched.next_read()
        first, *idle = watched.reads()
        assert (first.status, after_of(first)) == (200, 0)
        assert {(each.status, after_of(each)) for each in idle} == {(304, known)}
        assert host.post("one", "hello").status_code == 200
        watched.answered("you said: hello")
        last = host.session()["last_sequence"]
        watched.next_read()
        grown = watched.reads()[1 + len(idle) :]
        while after_of(grown[-1]) < last:
            grown.append(watched.next_read())
        for each in grown:
            if each.status == 304:
                continue
            document = each.json()
            sequences = [event["sequence"] for event in document["events"]]
            assert sequences == list(range(after_of(each) + 1, document["last_sequence"] + 1))
            assert sequences, "an answer with nothing in it"
        assert (grown[-1].status, after_of(grown[-1])) == (304, last)


@pytest.mark.stress
def test_waiting_is_cheap(browser: Browser) -> None:
    """Behind a Turn that says nothing, looks grow rare; of a long queue one is asked for."""
    gate = threading.Event()
    with (
        model_that([gate, *says("one")], *[says("more")] * 3) as options,
        HostProcess(None, *options) as host,
        opened(browser, host.url) as watched,
    ):
        watched.ask("first")
        expect(watched.page.locator("article.user")).to_have_count(1)
        for text in ("second", "third", "fourth"):
            watched.ask(text)
        queued = watched.page.locator("#waiting li[data-state='queued']")
        expect(queued).to_have_count(3)
        known = len(watched.requested)
        begun = [watched.next_read().request.timing["startTime"] for _ in range(6)]
        asked = [url for url in watched.requested[known:] if "/invocations/" in url]
        assert len(set(asked)) == 1
        assert len(asked) <= 3
        assert begun[-1] - begun[-2] >= 800
        gate.set()
        expect(watched.page.locator("article").last).to_have_attribute("aria-setsize", "8")
        expect(watched.page.locator("#running")).to_be_hidden()
        assert len(host.session()["transcript"]) == 8


@pytest.mark.stress
def test_an_idle_session_is_looked_at_ever_less(browser: Browser) -> None:
    """Each look at an unchanged session comes later than the one before, and costs a 304."""
    with HostProcess(None) as host, opened(browser, host.url) as watched:
        reads = [watched.next_read() for _ in range(3)]
        begun = [each.request.timing["startTime"] for each in reads]
        first, second = (after - before for before, after in pairwise(begun))
        assert first >= 750
        assert second >= 1_125
        assert {each.status for each in reads} == {304}
        assert not [url for url in watched.requested if "/invocations/" in url]


def test_what_nobody_sees_is_not_looked_at(browser: Browser) -> None:
    """A hidden tab asks for nothing, however long and whatever the clock says; shown, it does."""
    with HostProcess(None) as host, opened(browser, host.url) as watched:
        page = watched.page
        page.clock.install()
        page.reload()
        expect(page.locator("#state")).to_have_text("Connected")
        with page.expect_response(lambda each: "/api/v1/sessions/" in each.url):
            watched.hide(is_hidden=True)  # one look is under way, or comes with the change
        known = len(watched.requested)
        page.clock.run_for(120_000)
        assert host.post("elsewhere", "hello").status_code == 200
        page.clock.set_system_time("2001-01-01T00:00:00Z")
        page.clock.run_for(120_000)
        assert watched.requested[known:] == []
        watched.hide(is_hidden=False)
        watched.answered("[turn 1] you said: hello")


def test_a_page_that_slept_catches_up(browser: Browser) -> None:
    """Frozen, as a laptop that is closed does it, the page goes on where it was when it wakes."""
    with HostProcess(None) as host, opened(browser, host.url) as watched:
        watched.devtools(("Page.setWebLifecycleState", {"state": "frozen"}))
        for n in range(3):
            assert host.post(f"i-{n}", f"word {n}").status_code == 200
        watched.devtools(("Page.setWebLifecycleState", {"state": "active"}))
        watched.answered("[turn 3] you said: word 2")
        expect(watched.page.locator("article.user")).to_have_count(3)


# --- the reader's place -------------------------------------------------------------------------


def test_rows_add_up(browser: Browser) -> None:
    """The sums that place the rows are those of a plain list, whatever changes."""
    with HostProcess(None) as host, opened(browser, host.url) as watched:
        assert watched.page.evaluate(HEIGHTS_LAW) == []


def tops(watched: Watched, selector: str) -> dict[str, float]:
    """Return where each element that is wholly in sight stands, by its text."""
    return watched.page.evaluate(
        """(selector) => {
          const found = [...document.querySelectorAll(selector)];
          const view = found[0].closest(".scroller").getBoundingClientRect();
          const inside = found.filter((each) => {
            const { top, bottom } = each.getBoundingClientRect();
            return top >= view.top && bottom <= view.bottom;
          });
          return Object.fromEntries(
            inside.map((each) => [each.innerText, each.getBoundingClientRect().top]),
          );
        }""",
        selector,
    )


@pytest.mark.parametrize("size", [WIDE, pytest.param(PHONE, marks=pytest.mark.stress)])
def test_the_reader_keeps_the_place(
    browser: Browser, tmp_path: Path, size: tuple[int, int]
) -> None:
    """While the session grows, what is read stays where it is; the end is a click away.

    Who is at the end stays there.
    """
    database, conversation = tmp_path / "session.sqlite3", Conversation()
    turns = [event for turn_n in range(60) for event in conversation.turn(calls_n=turn_n % 3)]
    write_session(database, turns)
    with HostProcess(database) as host, opened(browser, host.url, size) as watched:
        page = watched.page
        page.locator("#transcript").hover()
        page.mouse.wheel(0, -3000)
        button = page.locator("#transcript-frame .to-end")
        expect(button).to_be_visible()
        page.mouse.wheel(0, 500)
        page.wait_for_function("document.querySelector('#transcript').scrollTop > 0")
        # Rows out of sight turn out higher than guessed, too.
        before = settled(watched)
        assert len(before) > 2
        for turn_n in range(3):
            assert host.post(f"more-{turn_n}", "word " * 100).status_code == 200
        expect(button).to_have_text("6 new ↓")
        after = tops(watched, "#transcript article")
        assert after.keys() == before.keys()
        assert after == pytest.approx(before, abs=1)
        button.click()
        watched.answered("[turn 63]")
        expect(button).to_be_hidden()
        for turn_n in range(3, 6):
            assert host.post(f"more-{turn_n}", "word " * 100).status_code == 200
            watched.answered(f"[turn {turn_n + 61}]")
            expect(page.locator("article").last).to_be_in_viewport()
        assert at_end(watched, "#transcript")


@pytest.mark.stress
def test_scrolling_is_even(browser: Browser, tmp_path: Path) -> None:
    """What is seen moves by as much as is scrolled, however wrong the guess at what comes next."""
    database, conversation = tmp_path / "session.sqlite3", Conversation()
    events: list[Event] = []
    for turn_n in range(80):
        events += [conversation.input("wide " * (turn_n * 7 % 90)), conversation.request()]
        events.append(conversation.answer("\n" * (turn_n % 9) + "w" * (turn_n * 37 % 2_000)))
    write_session(database, events)
    with HostProcess(database) as host, opened(browser, host.url) as watched:
        expect(watched.page.locator("article[aria-posinset='160']")).to_be_in_viewport()
        assert watched.page.evaluate(SCROLL_UP) == []


def settled(watched: Watched) -> dict[str, float]:
    """Return where entries stand once scrolling has come to rest."""
    found = tops(watched, "#transcript article")
    while True:
        watched.page.evaluate("() => new Promise((done) => requestAnimationFrame(done))")
        before, found = found, tops(watched, "#transcript article")
        if found == before:
            return found


def at_end(watched: Watched, selector: str) -> bool:
    return watched.page.locator(selector).evaluate(
        "(view) => view.scrollTop + view.clientHeight >= view.scrollHeight - 1"
    )


def test_a_fold_keeps_open_and_moves_nobody(browser: Browser, tmp_path: Path) -> None:
    """A call that was opened is open when it comes into sight again; its name stays in place."""
    database, conversation = tmp_path / "session.sqlite3", Conversation()
    write_session(database, [event for _ in range(100) for event in conversation.turn(calls_n=1)])
    with HostProcess(database) as host, opened(browser, host.url) as watched:
        page = watched.page
        page.locator("#transcript").press("Home")
        fold = page.locator("article.tool[aria-posinset='3'] summary")
        before = fold.bounding_box()
        fold.click()
        expect(page.get_by_label("Result")).to_be_visible()
        assert fold.bounding_box() == before
        expect(fold).to_be_focused()
        page.locator("#transcript").hover()
        page.mouse.wheel(0, 5_000)
        expect(fold).to_have_count(0)
        expect(page.locator("#transcript")).to_be_focused()  # the keyboard goes on from here
        page.keyboard.press("End")
        expect(page.locator("article[aria-posinset='400']")).to_be_in_viewport()
        expect(fold).to_have_count(0)
        page.locator("#transcript").press("Home")
        expect(page.get_by_label("Result")).to_be_visible()


def test_twenty_thousand_events(browser: Browser, tmp_path: Path) -> None:
    """However long the session, the document holds what is in sight, and both ends are reached."""
    database = tmp_path / "session.sqlite3"
    write_session(database, session_events(MANY_N))
    with HostProcess(database) as host, opened(browser, host.url) as watched:
        page, last = watched.page, host.session()["last_sequence"]  # recovery ended a Turn
        expect(page.locator("#timeline-count")).to_have_text(f"{last:,} events")
        entries = page.locator("article").last.get_attribute("aria-setsize")
        assert entries is not None
        for view, first_row, last_row in (
            ("#timeline", page.locator("#row-1"), page.locator(f"#row-{last}")),
            (
                "#transcript",
                page.locator("article[aria-posinset='1']"),
                page.locator(f"article[aria-posinset='{entries}']"),
            ),
        ):
            expect(last_row).to_be_in_viewport()
            page.locator(view).press("Home")
            expect(first_row).to_be_in_viewport()
            for part in (0.25, 0.5, 0.9):  # as the scroll bar is dragged
                page.locator(view).evaluate(
                    "(view, part) => { view.scrollTop = view.scrollHeight * part; }", part
                )
                nodes_n = page.evaluate("document.getElementsByTagName('*').length")
                assert nodes_n < NODES_MAX
                page.wait_for_function(NO_GAP, arg=view)
            page.locator(view).press("End")
            expect(last_row).to_be_in_viewport()
            assert at_end(watched, view)
        assert host.post("one", "hello").status_code == 200
        watched.answered("you said: hello")
        assert page.evaluate("document.getElementsByTagName('*').length") < NODES_MAX
        page.get_by_role("checkbox", name="chunk").uncheck()
        expect(page.locator(".event.model_chunk_recorded")).to_have_count(0)
        assert at_end(watched, "#timeline")
