"""Options of the test run."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--run-packaging",
        action="store_true",
        help="also build the wheel, install it in a new environment and use it there (minutes; make test-wheel)",
    )
    parser.addoption(
        "--run-browser",
        action="store_true",
        help="also open a report in a headless Chromium (needs chromium, chromedriver and selenium; make test-browser)",
    )
