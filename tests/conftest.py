"""What holds for every test: one hypothesis profile, nobody's settings, a browser a module."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from collections.abc import Generator

    from playwright.sync_api import Browser

# A busy machine makes a slow example, not a wrong one: speed is never what a law is about.
_common = settings(
    deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True, max_examples=60
)
settings.register_profile("quick", _common)
settings.register_profile("thorough", _common, max_examples=2_000)
settings.load_profile("quick")

# Tests start Hosts: options that the caller's environment holds are not meant for those.
for _name in [name for name in os.environ if name.startswith("SESSIOND_")]:
    del os.environ[_name]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the modules that take longest first, so that none is left to one core at the end."""
    items.sort(key=lambda item: not item.path.name.startswith(("test_page", "test_restart")))


@pytest.fixture(scope="module")
def browser() -> Generator[Browser, None, None]:
    """A browser that the tests of a module share."""
    from browser_support import started_browser  # not before: most tests need none of it

    with started_browser() as browser:
        yield browser
