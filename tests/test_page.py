"""The session page's files: what is served, what they may not hold, and asking for what is new."""

from __future__ import annotations

import re
from itertools import product
from typing import TYPE_CHECKING

import pytest
from http_support import assert_problem, served
from process_support import TREE

from web.page import FILES

if TYPE_CHECKING:
    from pathlib import Path

STATIC = TREE / "web" / "static"
PAGE = STATIC / "index.html"
SCRIPTS = [STATIC / name for name in FILES if name.endswith(".js")]
SESSION = "/api/v1/sessions/default"

TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


# --- the files ----------------------------------------------------------------------------------


async def test_files_are_served_conditionally() -> None:
    """Each file has its type and a tag; with the tag it costs a 304; it is always asked for."""
    async with served() as host:
        for path in ("/", *(f"/static/{name}" for name in FILES)):
            whole = await host.client.get(path)
            file = STATIC / (path.rpartition("/")[2] or "index.html")
            assert (whole.status_code, whole.content) == (200, file.read_bytes())
            assert whole.headers["content-type"] == TYPES[file.suffix]
            assert whole.headers["cache-control"] == "no-cache"
            tag = whole.headers["etag"]
            for known, status in ((tag, 304), (f"W/{tag}", 304), ('"other"', 200)):
                again = await host.client.get(path, headers={"If-None-Match": known})
                assert (again.status_code, again.headers["etag"]) == (status, tag)
                assert again.headers["cache-control"] == "no-cache"


@pytest.mark.parametrize("path", ["/static/", "/static/../page.py", "/static/page.py"])
async def test_nothing_else_is_served(path: str) -> None:
    """Only the files of the list are reached, whatever else lies there."""
    async with served() as host:
        assert_problem(await host.client.get(path), 404, "not_found")


def test_the_page_has_all_that_it_asks_for() -> None:
    """The files that the page and its modules name are those that are served."""
    named = set(re.findall(r'(?:href|src)="/static/([^"]+)"', read(PAGE)))
    for script in SCRIPTS:
        named |= set(re.findall(r'from "\./([^"]+)"', read(script)))
    assert named == set(FILES)


def test_text_never_becomes_markup() -> None:
    """No module has a way to turn text into elements, styles or code."""
    ways = re.compile(
        r"innerHTML|outerHTML|insertAdjacentHTML|setHTML|document\.write|DOMParser|\beval\b"
        r"|createContextualFragment|new Function|srcdoc|javascript:|\.cssText|setTimeout\(\s*[\"'`]"
    )
    for script in SCRIPTS:
        assert ways.search(read(script)) is None, script


def test_nothing_comes_from_elsewhere_or_inline() -> None:
    """No address of another host, no script, style or handler in the page itself."""
    for path in (PAGE, *(STATIC / name for name in FILES)):
        text = read(path).replace("http://www.w3.org/2000/svg", "")
        assert re.search(r"\b(?:https?|wss?):|//[a-z0-9-]+\.[a-z]|@import|url\(", text) is None, (
            path
        )
    page = read(PAGE)
    assert re.search(r"<style|\sstyle=|\son[a-z]+=", page) is None
    assert re.findall(r"<script[^>]*>(.*?)</script>", page, re.DOTALL) == [""]


# --- asking for what is new ---------------------------------------------------------------------


async def test_a_tag_holds_for_all_that_comes_after() -> None:
    """As long as nothing was added, the tag of ``?after=N`` is good for each ``?after=M``, M >= N.

    For an earlier M it is not: whoever has the later part alone does not have the rest. Once
    something was added, no tag from before is good for anything.
    """
    async with served() as host:
        await host.invoke("one", {"input": "hello"})
        last = host.log.snapshot().last_sequence
        tags = {
            known: (await host.client.get(SESSION, params={"after": known})).headers["etag"]
            for known in range(last + 1)
        }
        for (known, tag), after in product(tags.items(), range(last + 1)):
            answer = await host.client.get(
                SESSION, params={"after": after}, headers={"If-None-Match": tag}
            )
            assert answer.status_code == (304 if known <= after else 200)
            assert answer.headers["etag"] == tags[after]
        await host.invoke("two", {"input": "hello"})
        for (known, tag), after in product(tags.items(), (0, last)):
            answer = await host.client.get(
                SESSION, params={"after": after}, headers={"If-None-Match": tag}
            )
            assert answer.status_code == 200, known


@pytest.mark.parametrize(
    "tag", ["", ".", "default", "default.0.None", "default.0.None.", "default.0.None.x", "\xb2"]
)
async def test_tags_that_are_none_of_ours(tag: str) -> None:
    """Whatever else stands in If-None-Match, the whole answer comes."""
    async with served() as host:
        headers = [(b"If-None-Match", f'"{tag}"'.encode("latin-1"))]
        assert (await host.client.get(SESSION, headers=headers)).status_code == 200


async def test_a_digest_says_which_history_is_continued() -> None:
    """``digest`` must be that of event N, "" for none: else 409, never another history's events."""
    async with served() as host:
        await host.invoke("one", {"input": "hello"})
        digests = ["", *(envelope.digest.hex() for envelope in host.log.snapshot())]
        for (after, _), (claimed_at, claimed) in product(enumerate(digests), enumerate(digests)):
            asked = {"after": str(after), "digest": claimed}
            answer = await host.client.get(SESSION, params=asked)
            if after == claimed_at:
                assert answer.status_code == 200
            else:
                assert_problem(answer, 409, "digest_mismatch")
        # Also before the tag is looked at: the same state has a tag under each address.
        tag = (await host.client.get(SESSION)).headers["etag"]
        answer = await host.client.get(
            SESSION, params={"after": "1", "digest": "0" * 64}, headers={"If-None-Match": tag}
        )
        assert_problem(answer, 409, "digest_mismatch")
