"""The page of a study in a real browser: by keyboard, on a phone, and as a static copy.

With TIDEMILL_SCREENSHOTS, a folder, the page is also drawn there.
"""

import functools
import http.server
import json
import threading
import time
import zipfile

import pytest
from helpers.browser import DESKTOP, PHONE, browser, check_accessibility, save_screenshot, wait_for
from helpers.study import compare, invite, make_study, read_rows, serving
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

# A prompt that would run if the page did not escape it, and one that names its picture's colour.
PROMPTS = [
    ('<script>document.title="run"</script><img src=x onerror="document.title=1">', "odd"),
    *((f"a house of {material}", "houses") for material in ("stone", "wood", "glass", "brick")),
]


def find(driver, name):
    return driver.find_element(By.ID, name)


def shown_prompt(driver):
    """The prompt, once a comparison is shown."""
    wait_for(driver, lambda _: find(driver, "judge").is_displayed())
    return find(driver, "prompt").text


def press(driver, key):
    """Presses a key, and waits until the page shows something else."""
    texts = "['prompt', 'question'].map((id) => document.getElementById(id).textContent)"
    flags = "document.getElementById('judge').hidden, document.getElementById('back').disabled"
    state = f"return [...{texts}, {flags}]"
    before = driver.execute_script(state)
    webdriver.ActionChains(driver).send_keys(key).perform()
    wait_for(driver, lambda _: driver.execute_script(state) != before)


def requested_hosts(driver):
    """The hosts that the browser asked for anything."""
    hosts = set()
    for entry in driver.get_log("performance"):
        message = json.loads(entry["message"])["message"]
        if message["method"] == "Network.requestWillBeSent":
            address = message["params"]["request"]["url"]
            if address.startswith("http"):
                hosts.add(address.split("/")[2])
    return hosts


def judge_to_the_end(driver, keys):
    """Answers with these keys in turn until nothing is left; returns the number of answers."""
    answers = 0
    while True:
        wait_for(
            driver, lambda _: find(driver, "judge").is_displayed() or find(driver, "message").is_displayed()
        )
        if find(driver, "message").is_displayed():
            return answers
        press(driver, keys[answers % len(keys)])
        answers += 1


@pytest.fixture
def study(tmp_path):
    return make_study(tmp_path, PROMPTS, attention_checks=0.2, judgements=2)


def test_whole_study_by_keyboard(study):
    """Every comparison is judged by keys; the last answer is corrected; prompts are text."""
    token = invite(study, 1)[0]
    with serving(study) as server, browser(DESKTOP) as driver:
        address = f"http://127.0.0.1:{server.port}/"
        driver.get(f"{address}#{token}")
        shown_prompt(driver)
        assert driver.current_url == address, "the token stays in no address"
        check_accessibility(driver)
        save_screenshot(driver, "compare")
        sizes = [find(driver, side).find_element(By.TAG_NAME, "img").size for side in ("left", "right")]
        assert sizes[0] == sizes[1]
        assert sizes[0]["width"] > 300
        alts = [
            find(driver, side).find_element(By.TAG_NAME, "img").get_attribute("alt")
            for side in ("left", "right")
        ]
        assert alts == ["Left picture", "Right picture"]

        first = shown_prompt(driver)
        press(driver, Keys.ARROW_LEFT)
        press(driver, Keys.BACKSPACE)
        assert shown_prompt(driver) == first
        # A page that is loaded again goes on where it was.
        press(driver, Keys.ARROW_RIGHT)
        wait_for(driver, lambda _: read_rows(study, "SELECT sum(corrections) FROM judgement") == [(1,)])
        driver.get(address)
        assert shown_prompt(driver) == first
        assert find(driver, "question").text == "Which picture fits the text better?"
        webdriver.ActionChains(driver).send_keys("z").perform()
        wait_for(driver, lambda _: find(driver, "large").is_displayed())
        webdriver.ActionChains(driver).send_keys("z").perform()
        answers = judge_to_the_end(driver, [Keys.ARROW_DOWN, Keys.ARROW_LEFT, Keys.ARROW_RIGHT])
        assert "Thank you" in find(driver, "message-title").text
        check_accessibility(driver)
        assert driver.title == "Compare two pictures"
        assert requested_hosts(driver) == {f"127.0.0.1:{server.port}"}
        errors = [entry for entry in driver.get_log("browser") if entry["level"] == "SEVERE"]
        assert not errors, errors
    rows = read_rows(study, "SELECT answer, corrections FROM judgement ORDER BY judged")
    # Five comparisons and an attention check, two questions each.
    assert len(rows) == answers + 1 == 12
    assert sum(corrections for _, corrections in rows) == 1
    assert rows[0] == ("right", 1)


def test_study_works_on_a_phone(study):
    """Both pictures fit beside each other, and a tap chooses."""
    token = invite(study, 1)[0]
    with serving(study) as server, browser(PHONE) as driver:
        driver.get(f"http://127.0.0.1:{server.port}/#{token}")
        prompts = {shown_prompt(driver)}
        save_screenshot(driver, "compare-phone")
        check_accessibility(driver)
        boxes = [find(driver, side).rect for side in ("left", "right")]
        assert boxes[0]["y"] == boxes[1]["y"]
        assert boxes[0]["width"] == boxes[1]["width"] > 150
        assert boxes[1]["x"] + boxes[1]["width"] <= PHONE[0]
        assert driver.execute_script("return document.documentElement.scrollWidth") <= PHONE[0]
        for name in ("left", "choose-right", "tie", "right"):
            before = find(driver, "prompt").text, find(driver, "question").text
            find(driver, name).click()
            wait_for(
                driver,
                lambda _, before=before: (
                    (find(driver, "prompt").text, find(driver, "question").text) != before
                ),
            )
            prompts.add(shown_prompt(driver))
        assert len(prompts) == 3
        wait_for(driver, lambda _: len(read_rows(study, "SELECT * FROM judgement")) == 4)


def test_raters_sign_in_and_the_administrator_invites(tmp_path):
    """A rater chooses a name; the administrator sees it, and makes links."""
    study = make_study(tmp_path, PROMPTS[1:3], sign_in=True, attention_checks=0.0)
    with serving(study) as server, browser(DESKTOP) as driver:
        driver.get(f"http://127.0.0.1:{server.port}/")
        wait_for(driver, lambda _: find(driver, "name").is_displayed())
        check_accessibility(driver)
        find(driver, "name").send_keys("zoë", Keys.ENTER)
        shown_prompt(driver)
        assert judge_to_the_end(driver, [Keys.ARROW_LEFT]) == 4
        driver.get(f"http://127.0.0.1:{server.port}/admin#{server.admin_token}")
        wait_for(driver, lambda _: "zoë" in find(driver, "raters").text)
        assert find(driver, "state").text == "2 of 6 judgements"
        check_accessibility(driver)
        find(driver, "invite").click()
        wait_for(driver, lambda _: find(driver, "links").get_property("value"))
        links = find(driver, "links").get_property("value").split()
        assert len(set(links)) == 5
        driver.get(links[0])
        shown_prompt(driver)


def test_static_copy_is_judged_and_its_answers_come_back(study, tmp_path):
    """The page works without our server; answers that the browser signed are imported."""
    site = tmp_path / "site"
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(site))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    exported = compare("export", study, "--raters", "1", "--comparisons", "3", "--url", url)
    with zipfile.ZipFile(exported["site"]) as archive:
        archive.extractall(site)
    with browser(DESKTOP) as driver:
        downloads = tmp_path / "downloads"
        driver.execute_cdp_cmd(
            "Page.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(downloads)}
        )
        driver.get(exported["links"][0])
        shown_prompt(driver)
        assert judge_to_the_end(driver, [Keys.ARROW_LEFT, Keys.ARROW_RIGHT]) == 6
        find(driver, "download").click()
        deadline = time.monotonic() + 20
        while not (found := list(downloads.glob("answers-*.jsonl"))):
            assert time.monotonic() < deadline, "no file was downloaded"
            time.sleep(0.05)
    server.shutdown()
    counts = compare("import", study, found[0])["files"][0]["lines"]
    assert counts == {"stored": 6, "repeated": 0, "forged": 0, "unknown": 0, "malformed": []}
