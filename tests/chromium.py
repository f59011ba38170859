"""Chromium as the tests of pages drive it."""

from __future__ import annotations

import os
import shutil

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")

needs_chromium = pytest.mark.skipif(
    not (CHROMIUM and DRIVER) and "GAMANEH_REQUIRE_BROWSER" not in os.environ,
    reason="chromium and chromedriver are not installed, and GAMANEH_REQUIRE_BROWSER is not set",
)

FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def open_chromium(*flags: str, **logs: str) -> webdriver.Chrome:
    """A browser without a window.

    Args:
        logs: kinds of log to be kept, each with its level.
    """
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM or "chromium"
    for flag in (*FLAGS, *flags):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", logs)
    return webdriver.Chrome(options=options, service=Service(DRIVER))
