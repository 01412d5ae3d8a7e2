"""What holds for every test: one hypothesis profile, and nobody's settings from outside."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

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
