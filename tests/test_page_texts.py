"""What people, models and tools say, on the page: nothing unseen, code apart, long texts folded."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest
from browser_support import PHONE, WIDE, Watched, opened
from log_support import Conversation, chained, write_rows
from playwright.sync_api import expect
from process_support import HostProcess

from actors.codec import encode_event
from actors.events import (
    AssistantMessageCommitted,
    StepFailed,
    ToolExecutionCompleted,
    ToolExecutionStarted,
)
from actors.values import AssistantMessage, ErrorInfo, Json, ToolCall

if TYPE_CHECKING:
    from collections.abc import Generator

    from playwright.sync_api import Browser, Locator

    from actors.events import Event

BIDI = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
CONTROLS = "".join(map(chr, (*range(9), *range(0xB, 0x20), *range(0x7F, 0xA0))))
SHAPELESS = "\u200b\u2028\u2029\u2060\u2064\ufeff\U000e0001\U000e0041"
UNSEEN = BIDI + CONTROLS + SHAPELESS
KEPT = "tab\there, 👩‍👩‍👧, 🏴\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f, می‌خواهم"
"""What has no shape of its own, and must stay for tabs, joined emoji, a flag, and Persian."""

FENCED = (
    "Run `just test` first:\n\n```python\n"
    f"print('{'long ' * 60}')\n`not inline`\n```\n"
    "then ``a ` b``, a lone ` and **stars**, <b>b</b>\n````\n```\nunclosed"
)
HEBREW = "שלום עולם"
LONG = "w" * 19_999 + "𝄞" + " end " * 4_000
"""More than is shown at once; the limit must not cut the last character in half."""

DAYS = ("2026-11-30T14:59:59.000000Z", "2026-11-30T15:00:00.000000Z")
"""In Tokyo midnight is between them."""

BARE = """(pattern) => {
  const unseen = new RegExp(pattern, "u");
  const found = [];
  const texts = document.createTreeWalker(document, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const { data, parentElement } = texts.currentNode;
    if (unseen.test(data) && !parentElement.matches(".mark, script")) found.push(data);
  }
  for (const element of document.querySelectorAll("*")) {
    for (const { name, value } of element.attributes) if (unseen.test(value)) found.push(name);
  }
  return found;
}"""
"""Returns texts and attributes in which there is anything unseen outside of a mark."""

GOES_LEFT = """(element, text) => {
  const nodes = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
  while (nodes.nextNode() && !nodes.currentNode.data.includes(text));
  const at = nodes.currentNode.data.indexOf(text);
  const left = (index) => {
    const range = new Range();
    range.setStart(nodes.currentNode, at + index);
    range.setEnd(nodes.currentNode, at + index + 1);
    return range.getBoundingClientRect().left;
  };
  return left(text.length - 1) < left(0);
}"""
"""Tells whether a text runs from right to left as it is drawn."""

PROSE_LAW = """async () => {
  const { Prose } = await import("/static/prose.js");
  const code = ["`", "``", "```", "````", "\\n", "\\n", "\\r\\n"];
  const pieces = [...code, " ", "a", "py", "\\u202e", "<b>"];
  let seed = 3;
  const random = (n) => (seed = (seed * 48271) % 2147483647) % n;
  const shown = (prose, parent, text) => {
    prose.show(text);
    const copy = parent.cloneNode(true);
    copy.normalize();
    return copy.innerHTML;
  };
  const faults = [];
  for (let round = 0; round < 1500; round += 1) {
    const [parent, fresh] = [document.createElement("div"), document.createElement("div")];
    const prose = new Prose(parent);
    let text = "";
    for (let step = 0; step < 12; step += 1) {
      if (random(20) === 0) text = "";
      for (let n = random(4); n >= 0; n -= 1) text += pieces[random(pieces.length)];
      const grown = shown(prose, parent, text);
      if (parent.textContent !== text) faults.push(`lost: ${JSON.stringify(text)}`);
      const whole = shown(new Prose(fresh), fresh, text);
      fresh.replaceChildren();
      if (grown !== whole) faults.push(`${JSON.stringify(text)}: ${grown} | ${whole}`);
    }
  }
  return faults.slice(0, 3);
}"""
"""However a text comes, it looks as if it had come at once; and no character of it is lost."""


def plain(conversation: Conversation) -> list[Event]:
    """Return Turns with code, with Hebrew, and with a long text."""
    events: list[Event] = []
    for asked, answered in ((FENCED, FENCED), (HEBREW, f"{HEBREW}\nEnglish"), (LONG, LONG)):
        events += [conversation.input(asked), conversation.request(), conversation.answer(answered)]
    return events


def unseen(conversation: Conversation) -> list[Event]:
    """Return a Turn in which everything that anybody says holds what is unseen."""
    call = ToolCall(
        f"call{BIDI}", f"tool{UNSEEN}", json.dumps({f"key{UNSEEN}": UNSEEN, "שלום": "עולם"})
    )
    other = ToolCall("call-2", f"{HEBREW}\u202e", f"no JSON{UNSEEN}")
    events: list[Event] = [conversation.input(f"a{UNSEEN}bc {KEPT}"), conversation.request()]
    events += [conversation.chunk({"choices": [{"delta": {"content": UNSEEN}}]}) for _ in "ab"]
    message = AssistantMessage(f"x\u202egnp.exe `in\u202ecode` {UNSEEN}\n{HEBREW}!", (call, other))
    step = conversation.step_id
    return [
        *events,
        AssistantMessageCommitted(step, message, "tool_calls"),
        ToolExecutionStarted(step, call),
        ToolExecutionCompleted(step, call.id, result=Json.of({"found": UNSEEN})),
        ToolExecutionStarted(step, other),
        ToolExecutionCompleted(step, other.id, error=ErrorInfo("handler_error", UNSEEN)),
        StepFailed(step, "provider_error", UNSEEN),
    ]


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Generator[HostProcess, None, None]:
    """A Host whose session has all of the texts above, on two days."""
    database, conversation = tmp_path_factory.mktemp("texts") / "texts.sqlite3", Conversation()
    first = chained(map(encode_event, plain(conversation)), recorded_at=DAYS[0])
    last = (first[-1].sequence, first[-1].digest)
    stored = map(encode_event, unseen(conversation))
    write_rows(database, [*first, *chained(stored, after=last, recorded_at=DAYS[1])])
    with HostProcess(database) as host:
        yield host


def copied(watched: Watched, locator: Locator) -> str:
    """Select what an element shows, copy it with the keyboard, and return what was copied."""
    page = watched.page
    locator.evaluate("(e) => getSelection().selectAllChildren(e)")
    page.keyboard.press("Control+c")
    return page.evaluate("navigator.clipboard.readText()")


def test_nothing_is_unseen(browser: Browser, host: HostProcess) -> None:
    """What turns text around or has no shape is marked, wherever it stands; a copy still has it."""
    allowed = ["clipboard-read", "clipboard-write"]
    with opened(browser, host.url, permissions=allowed) as watched:
        page = watched.page
        user = page.locator("article.user .text").last
        assert user.text_content() == f"a{UNSEEN}bc {KEPT}"
        names = user.locator(".mark").evaluate_all("(all) => all.map((e) => e.dataset.name)")
        assert names == [each.encode("unicode_escape").decode() for each in UNSEEN]
        drawn = "(e) => [getComputedStyle(e, '::before').content, e.getBoundingClientRect().width]"
        for name, mark in zip(names, user.locator(".mark").all(), strict=True):
            content, width = mark.evaluate(drawn)
            assert json.loads(content) == name
            assert width > 10
        text = copied(watched, page.locator("article.assistant .text").last)
        assert text.startswith("x\u202egnp.exe `in\u202ecode` ")
        assert sorted(set(BIDI + "\x1b\x7f\x85") - set(text)) == []
        for summary in page.locator("article summary").all():
            summary.hover()
            before = summary.bounding_box()
            summary.click()
            expect(summary.locator("xpath=..").get_by_label("Arguments")).to_be_visible()
            assert summary.bounding_box() == before  # at the end of the transcript, too
        for run in page.locator(".event.run").all():
            run.click()
        expect(page.get_by_label("Result")).to_be_visible()
        assert page.evaluate(BARE, bare_pattern()) == []
        for event in host.session()["events"][-10:]:
            assert watched.event(event["sequence"]) == event["payload"]
            assert page.evaluate(BARE, bare_pattern()) == []


def bare_pattern() -> str:
    return "[" + "".join(f"\\u{{{ord(each):x}}}" for each in UNSEEN) + "]"


def test_text_goes_its_own_way(browser: Browser, host: HostProcess) -> None:
    """Hebrew runs from right to left, line by line; no override turns anything else around."""
    with opened(browser, host.url) as watched:
        page = watched.page
        answer = page.locator("article.assistant .text").last
        for text, goes_left in (("gnp.exe", False), (f"{HEBREW}!", True)):
            assert answer.evaluate(GOES_LEFT, text) is goes_left
        page.locator("article.tool summary").nth(0).click()
        arguments = page.get_by_label("Arguments")
        key, value = (arguments.get_by_text(word, exact=True) for word in ('"שלום"', '"עולם"'))
        boxes = key.bounding_box(), value.bounding_box()
        assert boxes[0] is not None
        assert boxes[1] is not None
        assert boxes[0]["x"] < boxes[1]["x"]  # a member's name before its value
        assert key.evaluate(GOES_LEFT, "שלום") is True
        assert arguments.evaluate(GOES_LEFT, '"key') is False
        assert page.locator("article.tool .name").last.evaluate(GOES_LEFT, HEBREW) is True


@pytest.mark.parametrize("size", [WIDE, PHONE], ids=["wide", "phone"])
def test_code_stands_apart(browser: Browser, host: HostProcess, size: tuple[int, int]) -> None:
    """Code between backticks is in monospaced blocks that scroll; all else is as it was written.

    Nothing of a text is lost, however it comes: the backticks are there for whoever copies.
    """
    with opened(browser, host.url, size) as watched:
        page = watched.page
        page.locator("#transcript").press("Home")
        for kind in ("user", "assistant"):
            text = page.locator(f"article.{kind} .text").first
            assert text.text_content() == FENCED
            expect(text.locator(".code")).to_have_count(2)
            block = text.get_by_role("group", name="Code, python")
            expect(block).to_have_text(
                re.compile(r"^print\('long .*'\)\n`not inline`\n$", re.DOTALL)
            )
            expect(block).to_have_css("font-family", re.compile("monospace"))
            assert block.evaluate("(pre) => pre.scrollWidth > pre.clientWidth")
            expect(text.locator(":scope > code")).to_have_text(["`just test`", "``a ` b``"])
            expect(text.get_by_role("group", name="Code", exact=True)).to_have_text("```\nunclosed")
            expect(text.locator("b, strong, em")).to_have_count(0)
        assert not page.evaluate("document.documentElement.scrollWidth > innerWidth")
        if size == WIDE:
            assert page.evaluate(PROSE_LAW) == []


def test_a_long_text_is_unfolded_and_folded(browser: Browser, host: HostProcess) -> None:
    """All of it is shown on demand, and the beginning again; in between it is as it was left."""
    with opened(browser, host.url) as watched:
        page = watched.page
        page.locator("#transcript").press("Home")
        entry = page.locator("article[aria-posinset='6']")
        page.evaluate("location.hash = '#event-9'")
        page.locator("#payload-entry").click()
        text, button = entry.locator(".text"), entry.locator(".more")
        assert text.text_content() == "w" * 19_999
        expect(button).to_have_text("Show all 40,001 characters")
        button.click()
        assert text.text_content() == LONG
        expect(button).to_have_text("Show less")
        page.locator("#transcript").press("Home")
        expect(entry).to_have_count(0)
        page.locator("#payload-entry").click()
        assert text.text_content() == LONG
        button.scroll_into_view_if_needed()
        button.click()
        assert text.text_content() == "w" * 19_999
        expect(button).to_be_in_viewport()
        expect(button).to_be_focused()


def test_days_are_told(browser: Browser, host: HostProcess) -> None:
    """Where a day begins its date stands, in the transcript and in the timeline, in local time."""
    with opened(browser, host.url, timezone_id="Asia/Tokyo") as watched:
        page = watched.page
        for view, row in (("#transcript", "article"), ("#timeline", ".event")):
            days = page.locator(f"{view} .day time")
            page.locator(view).press("End")
            expect(page.locator(f"{view} {row}").last).to_be_in_viewport()
            expect(days.last).to_have_text(re.compile("^Tuesday.* 1 December 2026$"))
            expect(days.last).to_have_attribute("datetime", "2026-12-01")
            page.locator(view).press("Home")
            expect(days.first).to_have_text(re.compile("^Monday.* 30 November 2026$"))
        timed = page.locator("#row-10 > time")
        expect(timed).to_have_text("00:00:00.000")
        expect(timed).to_have_attribute("datetime", DAYS[1])
        expect(timed).to_have_attribute("title", re.compile("^Tuesday.* 1 December 2026"))
    with opened(browser, host.url, timezone_id="Europe/London") as watched:
        watched.page.locator("#timeline").press("Home")
        expect(watched.page.locator(".event .day")).to_have_count(1)  # the same day there
