"""The session page in a real browser: opened, watched, asked of; and models made to order.

The browser is the system's Chromium; nothing is downloaded. Where there is none, tests are
skipped with the reason, or fail where ``REQUIRE_BROWSER`` is set.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import TYPE_CHECKING, Any, TypeAlias, cast
from urllib.parse import urlsplit

import pytest
from attrs import define, field
from log_support import rows_of, write_rows
from playwright.sync_api import expect, sync_playwright
from process_support import PATIENCE_S, Document, HostProcess
from provider_server import call_delta, delta, sse

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator, Sequence
    from pathlib import Path

    from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Request, Response

    from actors.events import Event

REQUIRED = "REQUIRE_BROWSER"
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
OPTIONS: tuple[str, ...] = (
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
WIDE, PHONE = (1440, 900), (390, 844)

CSP_ALOUD = """
addEventListener("securitypolicyviolation", (event) => {
  console.error(`refused by the policy: ${event.violatedDirective} ${event.blockedURI}`);
});
"""

NOBODY = "ERR_CONNECTION_|ERR_EMPTY_RESPONSE|ERR_INCOMPLETE_CHUNKED|ERR_NETWORK|ERR_SOCKET_"
"""What the console says while there is no Host to answer."""

HASTE = """
const { timeout } = AbortSignal;
AbortSignal.timeout = (ms) => timeout.call(AbortSignal, ms / 20);
"""
"""Makes a page's patience with a Host twenty times shorter."""

expect.set_options(timeout=30_000)


# --- the browser --------------------------------------------------------------------------------


def browser_path() -> str:
    """Return where the system has its browser, or skip the test; see the module."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        reason = f"there is no browser: none of {', '.join(NAMES)} is installed"
        if os.environ.get(REQUIRED):
            pytest.fail(reason)
        pytest.skip(reason)
    return found


@contextmanager
def started_browser() -> Generator[Browser, None, None]:
    """A browser process with no window and a profile of its own."""
    path = browser_path()
    options = list(OPTIONS)
    if os.geteuid() == 0:
        options.append("--no-sandbox")  # there is none for root
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=options)
        try:
            yield browser
        finally:
            browser.close()


@define(eq=False, slots=False)  # playwright notes its handlers on whose they are
class Watched:
    """A page, and all that it did which a person does not see."""

    page: Page
    url: str
    """Where its Host listens."""
    complaints: list[str] = field(factory=list[str])
    """Errors and warnings of the console, exceptions, refusals by the page's policy."""
    requested: list[str] = field(factory=list[str])
    responses: list[Response] = field(factory=list["Response"])
    expected: list[str] = field(factory=list[str])
    """Patterns of complaints that belong to what the test does."""

    def watch(self, context: BrowserContext) -> None:
        """Write down what the context does from now on."""
        context.add_init_script(CSP_ALOUD)
        context.on("request", self._request)
        self.page.on("console", self._console)
        self.page.on("pageerror", lambda error: self.complaints.append(f"exception: {error}"))
        self.page.on("response", self._response)

    def _request(self, request: Request) -> None:
        self.requested.append(request.url)

    def _response(self, response: Response) -> None:
        self.responses.append(response)

    def _console(self, message: ConsoleMessage) -> None:
        if message.type in {"error", "warning"}:
            self.complaints.append(f"{message.type}: {message.text}")

    def check(self) -> None:
        """Fail for each complaint that was not expected, and for a request to anybody else."""
        foreign = [url for url in self.requested if not url.startswith(f"{self.url}/")]
        assert not foreign, foreign
        unexpected = [
            each
            for each in self.complaints
            if not any(re.search(pattern, each) for pattern in self.expected)
        ]
        assert not unexpected, unexpected

    # --- what a person does and sees ---

    def ask(self, text: str) -> None:
        """Type a message, key by key, and send it."""
        message = self.page.locator("#message")
        expect(message).to_be_editable()
        message.click()
        self.page.keyboard.type(text)
        self.page.keyboard.press("Enter")

    def put(self, text: str) -> None:
        """Put a text into the field at once, whatever it is; a browser types a megabyte slowly."""
        code = "(field, text) => { field.value = JSON.parse(text); }"
        self.page.locator("#message").evaluate(code, json.dumps(text))

    def devtools(self, *commands: tuple[str, Document]) -> None:
        """Send commands of the browser's own protocol to the page."""
        session = cast("Any", self.page.context.new_cdp_session(self.page))
        for method, parameters in commands:
            session.send(method, parameters)

    def hide(self, *, is_hidden: bool) -> None:
        """Have the page believe that its tab is in the background, or in front."""
        self.page.evaluate(
            """(hidden) => {
              Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
              document.dispatchEvent(new Event("visibilitychange"));
            }""",
            is_hidden,
        )

    def answered(self, text: str) -> None:
        """Wait until an answer has this text, whole."""
        expect(self.page.locator(".assistant:not(.live) .text").get_by_text(text)).to_be_visible()

    def event(self, sequence: int) -> Document:
        """Return a payload as the page shows it."""
        self.page.locator(f"#row-{sequence}").click()
        expect(self.page.locator("#payload-title")).to_have_text(f"Event {sequence:,}")
        return cast("Document", json.loads(self.page.locator("#payload-text").inner_text()))

    def reads(self) -> list[Response]:
        """Return the answers to requests for the session, in order."""
        return [each for each in self.responses if "/api/v1/sessions/" in each.url]

    def next_read(self) -> Response:
        """Wait for another request for the session; return its answer."""
        with self.page.expect_response(lambda each: "/api/v1/sessions/" in each.url) as found:
            pass
        return found.value


@contextmanager
def opened(
    browser: Browser,
    url: str,
    size: tuple[int, int] = WIDE,
    path: str = "/",
    **options: Any,
) -> Generator[Watched, None, None]:
    """Open a Host's page in a profile of its own; at the end, see that it did nothing amiss."""
    width, height = size
    context = browser.new_context(
        viewport={"width": width, "height": height}, locale="en-GB", **options
    )
    try:
        context.set_default_timeout(PATIENCE_S * 1000)
        watched = Watched(context.new_page(), url)
        watched.watch(context)
        watched.page.goto(f"{url}{path}")
        expect(watched.page.locator("body")).not_to_have_attribute("data-state", "connecting")
        yield watched
        watched.check()
    finally:
        context.close()


def restarted(database: Path | None, host: HostProcess, *options: str) -> HostProcess:
    """Start another Host where ``host`` was."""
    return HostProcess(database, *options, "--port", str(urlsplit(host.url).port))


# --- accessibility ------------------------------------------------------------------------------


def findings(page: Page) -> list[str]:
    """Return what axe-core finds wrong with the page as it is shown now, down to minor faults."""
    source = files("axe_playwright_python").joinpath("axe.min.js").read_text(encoding="utf-8")
    page.evaluate(source)
    found = page.evaluate("axe.run(document, { resultTypes: ['violations'] })")
    return [
        f"{each['id']}: {node['target']}: {node['failureSummary']}"
        for each in found["violations"]
        for node in each["nodes"]
    ]


# --- sessions and models ------------------------------------------------------------------------


def write_session(path: Path, events: Iterable[Event]) -> None:
    """Make a database whose session has these events."""
    write_rows(path, rows_of(events))


Answer: TypeAlias = "Sequence[bytes | threading.Event]"
"""What a model sends, and where it waits until it is let on."""


def says(*pieces: str) -> list[bytes]:
    """Return the chunks of an answer."""
    return [*(sse(delta(content=piece)) for piece in pieces), sse(delta("stop"), "[DONE]")]


def wants(name: str, arguments: str, call_id: str = "call-1") -> list[bytes]:
    """Return the chunks of a tool call."""
    call = call_delta(index=0, id=call_id, type="function", name=name, arguments=arguments)
    return [sse(call), sse(delta("tool_calls"), "[DONE]")]


@contextmanager
def model_that(*answers: Answer) -> Generator[tuple[str, ...], None, None]:
    """A provider that gives these answers in turn, then HTTP 500; yields a Host's options.

    Where an answer waits when the block is left, it is let on.
    """
    script: Iterator[Answer] = iter(answers)
    gates = [part for answer in answers for part in answer if isinstance(part, threading.Event)]

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            answer = next(script, None)
            self.send_response(500 if answer is None else 200)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
            try:
                for part in answer or ():
                    if isinstance(part, threading.Event):
                        assert part.wait(PATIENCE_S)
                    else:
                        self.wfile.write(part)
            except (BrokenPipeError, ConnectionResetError):
                return  # the Host has hung up: a Turn was cancelled

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 # the base's name
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = False  # so that closing waits for them
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield ("--model-url", f"http://127.0.0.1:{server.server_port}/v1", "--model", "m")
    finally:
        for gate in gates:
            gate.set()
        server.shutdown()
        thread.join()
        server.server_close()


def inputs(host: HostProcess) -> list[str]:
    """Return what is on record of the users' words."""
    entries = host.session()["transcript"]
    return [entry["text"] for entry in entries if entry["kind"] == "user"]
