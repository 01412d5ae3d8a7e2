"""The timeline of the session page: runs and filter, what is new, addresses and the way back."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from browser_support import PHONE, opened, write_session
from log_support import Conversation
from playwright.sync_api import expect
from process_support import HostProcess

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import Browser

NODES_MAX = 2_500
"""What the document may hold, however long the session is."""

LINES_LAW = """async () => {
  const { Lines } = await import("/static/lines.js");
  const [chunk, other, third] = ["model_chunk_recorded", "step_failed", "user_input_accepted"];
  const stamps = ["2026-12-01T11:00:00.000000Z", "2026-12-01T12:00:00.000000Z"];
  let seed = 7;
  const random = (n) => (seed = (seed * 48271) % 2147483647) % n;
  const session = { events: [] };
  const lines = new Lines(session);
  let [shown, hasRuns, opened] = [new Set([chunk, other, third]), true, new Set()];
  /* The account: run by run, each as a string. */
  const expected = () => {
    const found = [];
    let run = [];
    const end = () => {
      if (run.length > 1) found.push(`${run[0]}-${run.at(-1)}`);
      if (run.length === 1 || opened.has(run[0])) found.push(...run.map(String));
      run = [];
    };
    for (const { sequence, type } of session.events) {
      if (type !== chunk || !shown.has(type) || !hasRuns) end();
      if (!shown.has(type)) continue;
      run.push(sequence);
      if (type !== chunk || !hasRuns) end();
    }
    end();
    return found;
  };
  const faults = [];
  for (let round = 0; round < 800; round += 1) {
    const move = random(10);
    if (move < 7) {
      const type = [chunk, chunk, chunk, other, third][random(5)];
      const event = { sequence: session.events.length + 1, type, recorded_at: stamps[random(2)] };
      session.events.push(event);
      lines.add(event);
    } else if (move < 9 && lines.length > 0) {
      const index = random(lines.length);
      if (!lines.isRun(index)) continue;
      const { sequence } = lines.at(index);
      if (opened.has(sequence)) opened.delete(sequence);
      else opened.add(sequence);
      lines.toggle(index);
    } else {
      shown = new Set([chunk, other, third].filter(() => random(4) > 0));
      hasRuns = !(shown.size === 1 && shown.has(chunk));
      lines.choose((type) => shown.has(type), hasRuns);
    }
    const found = [...Array(lines.length).keys()].map((index) => {
      const { sequence, last } = lines.at(index);
      return lines.isRun(index) ? `${sequence}-${last}` : String(sequence);
    });
    if (found.join() !== expected().join()) faults.push(`${round}: ${found} | ${expected()}`);
    const at = random(session.events.length + 1);
    const after = session.events.filter(({ sequence, type }) => sequence > at && shown.has(type));
    if (lines.countAfter(at) !== after.length) faults.push(`${round}: after ${at}`);
    for (let index = 0; index < lines.length; index += 1) {
      const { sequence } = lines.at(index);
      if (lines.indexOf(sequence, lines.isRun(index)) !== index) faults.push(`${round}: ${index}`);
    }
  }
  return faults.slice(0, 3);
}"""
"""Whatever comes and is asked for, the lines are those of a plain account of the events."""

SPLICE_LAW = """async () => {
  const { Heights } = await import("/static/heights.js");
  const heights = new Heights();
  let plain = [];
  let seed = 5;
  const random = (n) => (seed = (seed * 48271) % 2147483647) % n;
  const faults = [];
  for (let round = 0; round < 400; round += 1) {
    const index = random(plain.length + 1);
    const removedN = random(Math.min(5, plain.length - index + 1));
    const added = Array.from({ length: random(9) }, () => 1 + random(90));
    heights.splice(index, removedN, added);
    plain = [...plain.slice(0, index), ...added, ...plain.slice(index + removedN)];
    let offset = 0;
    for (const [at, height] of plain.entries()) {
      const isRight = heights.at(at) === height && heights.offset(at) === offset;
      if (!isRight) faults.push(`${round}: ${at}`);
      if (heights.find(offset) !== at) faults.push(`${round}: find ${offset}`);
      offset += height;
    }
    if (heights.length !== plain.length) faults.push(`${round}: length`);
  }
  return faults.slice(0, 3);
}"""
"""Rows that come between others, or go, leave the sums of a plain list."""


def test_lines_and_rows_are_exact(browser: Browser) -> None:
    """Which lines there are, and where they stand, is what plain accounts of them say."""
    with HostProcess(None) as host, opened(browser, host.url) as watched:
        assert watched.page.evaluate(LINES_LAW) == []
        assert watched.page.evaluate(SPLICE_LAW) == []


def test_the_timeline_is_filtered(browser: Browser) -> None:
    """Each kind is counted and can be left out, all of them too; an entry leads past the filter."""
    with HostProcess(None) as host, opened(browser, host.url) as watched:
        page = watched.page
        watched.ask("hello")
        watched.answered("[turn 1] you said: hello")
        events = host.session()["events"]
        chunks = [each for each in events if each["type"] == "model_chunk_recorded"]
        others_n = len(events) - len(chunks)
        box = page.get_by_role("checkbox", name=f"chunk {len(chunks)}")
        expect(page.locator(".event")).to_have_count(others_n + 1)  # the chunks are one row
        box.uncheck()
        expect(page.locator(".event")).to_have_count(others_n)
        expect(page.locator("#timeline-count")).to_have_text(f"{others_n} of {len(events)} events")
        watched.ask("again")  # what is left out stays out
        watched.answered("[turn 2] you said: again")
        expect(page.locator(".event.model_chunk_recorded")).to_have_count(0)
        page.get_by_role("button", name="Show all", exact=True).click()
        expect(page.locator(".event.model_chunk_recorded")).to_have_count(2)
        page.get_by_role("button", name="Hide all", exact=True).click()
        expect(page.get_by_text("No event of the kinds chosen.")).to_be_visible()
        page.get_by_role("checkbox", name="chunk").check()  # alone they stand singly
        expect(page.locator(".event")).to_have_count(2 * len(chunks))
        page.get_by_role("checkbox", name="chunk").uncheck()
        # An entry leads to its event, whether the filter lets it through or not.
        page.get_by_role("link", name="Event 1", exact=True).click()
        expect(page.locator("#row-1")).to_have_attribute("aria-selected", "true")
        expect(page.locator("#payload-type")).to_have_text("user_input_accepted")


def test_chunks_are_folded(browser: Browser, tmp_path: Path) -> None:
    """A run of chunks is one row, opened where it stands; a link to one of them opens it too.

    However long it is, only what is seen of it is in the document.
    """
    conversation = Conversation()
    events = [conversation.input(), conversation.request()]
    words = ["Once ", "upon ", "a ", "time"] * 750
    events += [conversation.chunk({"choices": [{"delta": {"content": word}}]}) for word in words]
    events += [conversation.answer(), *conversation.turn(), *conversation.turn()]
    database = tmp_path / "session.sqlite3"
    write_session(database, events)
    with HostProcess(database) as host, opened(browser, host.url) as watched:
        page = watched.page
        run = page.locator("#run-3")
        expect(run.locator(".kind")).to_have_text("3,000 chunks")
        expect(run.locator(".said")).to_have_text(re.compile(r"^3\u20133,002 · Once upon a time"))
        expect(page.locator(".event")).to_have_count(len(events) - 2_999)
        before = run.bounding_box()
        run.click()
        expect(run).to_have_attribute("aria-expanded", "true")
        assert run.bounding_box() == before
        expect(page.locator("#row-3")).to_be_visible()
        expect(page.locator("#payload")).to_be_hidden()
        assert watched.event(4)["chunk"] == {"choices": [{"delta": {"content": "upon "}}]}
        run.click()
        expect(page.locator("#row-4")).to_have_count(0)
        expect(run).to_have_attribute("aria-selected", "true")  # what is shown is in there
        for sequence in (3_002, 1_500):
            page.evaluate("(n) => { location.hash = `#event-${n}`; }", sequence)
            row = page.locator(f"#row-{sequence}")
            expect(row).to_be_in_viewport()
            expect(row).to_have_attribute("aria-selected", "true")
        assert page.evaluate("document.getElementsByTagName('*').length") < NODES_MAX
        page.locator("#timeline").press("End")
        expect(page.locator(f"#row-{len(events)}")).to_be_in_viewport()
        assert host.post("one", "hello there").status_code == 200
        expect(page.locator(".event.run").last.locator(".kind")).to_have_text(re.compile("chunks"))
        last = host.session()["last_sequence"]
        expect(page.locator(f"#row-{last}")).to_be_in_viewport()  # who is at the end stays there
        page.locator("#timeline").press("Home")
        page.locator("#run-3").click()
        expect(page.locator("#row-3003")).to_be_in_viewport()


def test_an_event_has_an_address(browser: Browser, tmp_path: Path) -> None:
    """The address of an open event leads to it again, also on a phone; closing forgets it.

    An address that names no event shows none, and says so; one that comes is shown when it does.
    """
    database = tmp_path / "session.sqlite3"
    write_session(database, Conversation().every_variant())
    with (
        HostProcess(database) as host,
        opened(browser, host.url, PHONE, "/#event-5") as watched,
    ):
        page = watched.page
        title = page.locator("#payload-title")
        expect(title).to_have_text("Event 5")
        expect(page.locator("#row-5")).to_be_visible()
        expect(page.locator("#transcript")).to_be_hidden()
        expect(page.locator("#timeline-frame .to-end")).to_have_text("↓")  # nothing is new
        boxes = [page.locator(each).bounding_box() for each in ("#payload-copy", "#payload-close")]
        assert boxes[0] is not None
        assert boxes[1] is not None
        assert boxes[0]["y"] == boxes[1]["y"]
        page.keyboard.press("ArrowDown")
        expect(page).to_have_url(f"{host.url}/#event-6")
        page.keyboard.press("Escape")
        expect(page).to_have_url(f"{host.url}/")
        last = host.session()["last_sequence"]
        for name in ("99999", "0", "007", "foo", "5x", "", "9" * 30):
            page.evaluate("location.hash = '#event-5'")
            expect(title).to_have_text("Event 5")
            expect(page.locator("#missing")).to_be_hidden()
            page.evaluate("(name) => { location.hash = `#event-${name}`; }", name)
            expect(page.locator("#payload")).to_be_hidden()
            told = (
                f"no event 99,999: the last one is {last}." if name == "99999" else "no such event"
            )
            expect(page.locator("#missing")).to_contain_text(told)
            expect(page.locator("#spoken")).to_contain_text(told)
            expect(page.locator(".event[aria-selected='true']")).to_have_count(0)
        page.evaluate("(next) => { location.hash = `#event-${next}`; }", last + 1)
        expect(page.locator("#missing")).to_contain_text(f"no event {last + 1}")
        page.locator("#message").focus()
        assert host.post("one", "hello").status_code == 200
        expect(title).to_have_text(f"Event {last + 1}")
        expect(page.locator("#missing")).to_be_hidden()
        expect(page.locator("#message")).to_be_focused()


def test_back_returns_to_what_was_shown(browser: Browser, tmp_path: Path) -> None:
    """Choosing an event is a step that Back undoes, in a list and on a phone's two views.

    The same event again is no step, nor is going on from one to the next; closing takes the
    step back.
    """
    database = tmp_path / "session.sqlite3"
    write_session(database, Conversation().every_variant())
    with HostProcess(database) as host, opened(browser, host.url, PHONE) as watched:
        page = watched.page
        title, steps = page.locator("#payload-title"), "history.length"
        page.get_by_role("button", name="Timeline", exact=True).click()
        begun = page.evaluate(steps)
        watched.event(12)
        watched.event(12)
        assert page.evaluate(steps) == begun + 1
        watched.event(14)
        page.locator("#timeline").press("ArrowUp")
        expect(title).to_have_text("Event 13")
        assert page.evaluate(steps) == begun + 2
        page.go_back()
        expect(title).to_have_text("Event 12")
        expect(page.locator("#row-12")).to_have_attribute("aria-selected", "true")
        page.go_back()
        expect(page.locator("#payload")).to_be_hidden()
        expect(page).to_have_url(f"{host.url}/")
        page.go_forward()
        expect(title).to_have_text("Event 12")
        page.locator("#payload-close").click()
        expect(page).to_have_url(f"{host.url}/")
        page.get_by_role("button", name="Transcript", exact=True).click()
        page.locator("#transcript").press("Home")
        page.get_by_role("link", name="Event 1", exact=True).click()
        expect(title).to_have_text("Event 1")
        expect(page.locator("#transcript")).to_be_hidden()
        assert page.evaluate(steps) == begun + 1  # what was closed is not on the way
        page.go_back()
        expect(page.locator("#payload")).to_be_hidden()
        expect(page.locator("#transcript")).to_be_visible()
        page.get_by_role("link", name="Event 1", exact=True).click()
        # At once, while the browser is still on its way back.
        page.evaluate(
            "for (const id of ['payload-close', 'row-2']) document.getElementById(id).click()"
        )
        expect(title).to_have_text("Event 2")
        expect(page).to_have_url(f"{host.url}/#event-2")


def test_what_is_new_is_counted(browser: Browser, tmp_path: Path) -> None:
    """The button to the end tells how many of the events shown came since one was there."""
    database, conversation = tmp_path / "session.sqlite3", Conversation()
    write_session(database, [event for _ in range(30) for event in conversation.turn(calls_n=1)])
    with HostProcess(database) as host, opened(browser, host.url, path="/#event-2") as watched:
        page, button = watched.page, watched.page.locator("#timeline-frame .to-end")
        expect(page.locator("#row-2")).to_be_in_viewport()
        expect(button).to_have_text("↓")
        box = page.get_by_role("checkbox", name="chunk")
        box.uncheck()
        expect(button).to_have_text("↓")
        before = host.session()["last_sequence"]
        assert host.post("one", "hello").status_code == 200
        new = host.session()["events"][before:]
        chunks_n = sum(each["type"] == "model_chunk_recorded" for each in new)
        assert 1 < chunks_n < len(new)
        expect(button).to_have_text(f"{len(new) - chunks_n} new ↓")
        box.check()
        expect(button).to_have_text(f"{len(new)} new ↓")
        expect(button).to_have_accessible_name(f"{len(new)} new events below")
        button.click()
        expect(button).to_be_hidden()
        page.locator("#timeline").press("Home")
        expect(button).to_have_text("↓")
