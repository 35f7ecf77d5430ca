"""A real Chromium without a window, for the tests of pages."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")


@contextmanager
def browser() -> Iterator[Any]:
    """A browser that notes all that a page writes to its console.

    Skips with a sentence where there is none, and fails where TIEBREAK_BROWSER=required says that there must be one.
    """
    program = next((found for name in NAMES if (found := shutil.which(name))), None)
    driver = shutil.which("chromedriver")
    if program is None or driver is None:
        said = "no Chromium with its driver here, so no page was opened: apt-get install chromium chromium-driver"
        if os.environ.get("TIEBREAK_BROWSER") == "required":
            pytest.fail(said)
        pytest.skip(said)
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = program
    # Not the sandbox: tests may run as root. Nothing but our own files is opened.
    for flag in (
        "--headless=new",
        "--no-sandbox",
        "--disable-dev-shm-usage",
        "--disable-gpu",
        "--hide-scrollbars",
    ):
        options.add_argument(flag)
    options.set_capability(
        "goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"}
    )
    opened = webdriver.Chrome(options=options, service=Service(driver))
    try:
        yield opened
    finally:
        opened.quit()


def look(opened: Any, width: int, scheme: str) -> None:
    """The width of the window, and the colours that the system asks for."""
    size = {
        "width": width,
        "height": 900,
        "deviceScaleFactor": 1,
        "mobile": width < 500,
    }
    opened.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    media = [{"name": "prefers-color-scheme", "value": scheme}]
    opened.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": media})
