"""Chromium, driven by selenium: pages that a test looks at."""

import importlib.util
import json
import os
from contextlib import contextmanager
from pathlib import Path

from selenium import webdriver
from selenium.webdriver.support.wait import WebDriverWait

DESKTOP, PHONE = (1280, 900), (390, 844)
AXE = Path(importlib.util.find_spec("axe_playwright_python").origin).with_name("axe.min.js")


@contextmanager
def browser(size):
    """Chromium, whose window has a size, and which reaches only this machine."""
    options = webdriver.ChromeOptions()
    options.binary_location = "/usr/bin/chromium"
    flags = "headless=new no-sandbox disable-gpu no-first-run disable-background-networking disable-sync"
    for flag in [*flags.split(), "disable-component-update", "disable-dev-shm-usage"]:
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    width, height = size
    if size == PHONE:
        metrics = {"width": width, "height": height, "pixelRatio": 2.0, "touch": True}
        options.add_experimental_option("mobileEmulation", {"deviceMetrics": metrics})
    driver = webdriver.Chrome(options, webdriver.ChromeService("/usr/bin/chromedriver"))
    try:
        driver.set_window_size(width, height)
        yield driver
    finally:
        driver.quit()


def wait_for(driver, condition, seconds=20):
    return WebDriverWait(driver, seconds, poll_frequency=0.02).until(condition)


def save_screenshot(driver, name):
    if folder := os.environ.get("TIDEMILL_SCREENSHOTS"):
        driver.save_screenshot(str(Path(folder) / f"{name}.png"))


def check_accessibility(driver):
    """axe-core finds nothing serious."""
    # The page's policy forbids other scripts, so axe comes through the driver.
    driver.execute_script(AXE.read_text())
    found = driver.execute_async_script("axe.run().then(arguments[arguments.length - 1])")
    serious = [one for one in found["violations"] if one["impact"] in ("serious", "critical")]
    assert not serious, json.dumps(serious, indent=1)
