"""The report of a run in a real browser: charts drawn, nothing fetched, readable on a phone.

With TIDEMILL_SCREENSHOTS, a folder, the page is also drawn there.
"""

import json
import subprocess
import urllib.request

import pytest
from helpers.browser import DESKTOP, PHONE, browser, check_accessibility, save_screenshot, wait_for
from helpers.study import TIDEMILL
from PIL import Image

STEPS = 600


def write_metrics(path, steps, rng):
    """Lines as the trainer writes them, of two ranks with GPUs, in two phases."""
    noise = ([rng.gauss(0, 1) for _ in range(4)] for _ in range(steps))
    with path.open("w") as file:
        for step, (a, b, c, d) in enumerate(noise, start=1):
            phase = int(step > steps // 2)
            loss = 0.1 + 2 / (step + 1) + 0.01 * abs(a)
            gpu = {"utilization": 0.95 + 0.01 * min(b, 1), "memory_mib": 61000, "power_w": 650 + 10 * c}
            gpu |= {
                "temperature_c": 60 + d,
                "sm_clock_mhz": 1900,
                "throttle_reasons": 4,
                "ecc_errors": 0,
                "xid": 0,
            }
            host = {"cpu": 0.4 + 0.05 * abs(d), "memory_mib": 20000 + step, "disk_read_mib": 100 * abs(b)}
            host |= {"disk_written_mib": 1.0, "received_mib": 50 * abs(c), "sent_mib": 5.0}
            line = {
                "step": step,
                "phase": phase,
                "resolution": 256 << phase,
                "samples": 64 * step,
                "loss": loss,
                "grad_norm": 0.5 + abs(b),
                "learning_rate": 1e-4,
                "images_per_second": (697 if phase == 0 else 171) + 5 * c,
                "tflops": 400,
                "mfu": 0.4,
                "data_wait": 0.01 * abs(d),
                "communication": {
                    part: {"busy": 0.02, "exposed": 0.001 * abs(a)}
                    for part in ("gradients", "weights", "ranks")
                },
                "memory_mib": [9000, 9100],
                "gpu_memory_mib": [60000, 60500],
                "telemetry": [{"host": host, "gpu": gpu}, {"host": host, "gpu": gpu}],
                "loss_by_timestep": [loss * (1 + tenth / 10) for tenth in range(10)],
                "checkpoint": step - step % 100,
            }
            if step % 50 == 0:
                line |= {"validation_loss": loss, "validation_ema_loss": 0.95 * loss, "validation_rows": 256}
            file.write(json.dumps(line) + "\n")


@pytest.fixture(scope="module")
def folder(tmp_path_factory, make_rng):
    """A run with metrics, previews and an evaluation, and a cut line at its end."""
    folder = tmp_path_factory.mktemp("run")
    write_metrics(folder / "metrics.jsonl", STEPS, make_rng("report"))
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 601, "lo')
    (folder / "previews").mkdir()
    for step, colour in ((200, (200, 60, 60)), (400, (60, 60, 200)), (600, (60, 160, 60))):
        Image.new("RGB", (512, 128), colour).save(folder / "previews" / f"step-{step:08}.png")
    event = {"time": 1.8e9, "kind": "fault", "step": 250, "steps_lost": 50, "seconds_lost": 30.5}
    (folder / "events.jsonl").write_text(json.dumps(event | {"message": "rank 1 was killed"}) + "\n")
    write_trace(folder / "profile")
    write_preprocess_log(folder / "preprocess.jsonl")
    return folder


def write_trace(folder):
    """A step's memory and kernels on a GPU, as PyTorch's profiler writes it."""
    folder.mkdir()
    phases = (("forward", 0, 100), ("backward", 100, 200), ("optimizer", 300, 50))
    events = [
        {"ph": "X", "cat": cat, "name": name, "ts": 1e3 * (at + late), "dur": 1e3 * long, "args": {}}
        for cat, late in (("user_annotation", 0), ("gpu_user_annotation", 400))
        for name, at, long in phases
    ]
    for at in range(0, 700, 10):
        kernel = "ncclDevKernel_ReduceScatter" if at % 30 == 0 else "sm90_xmma"
        events.append({"ph": "X", "cat": "kernel", "name": kernel, "ts": 1e3 * at, "dur": 8e3})
    for ms in range(350):
        mib = 10000 + 400 * min(ms, 300 - ms)
        args = {"Device Type": 1, "Total Allocated": mib << 20, "Total Reserved": 72000 << 20}
        events.append({"ph": "i", "name": "[memory]", "ts": 1e3 * ms, "args": args})
    (folder / "step-00000013-rank-0.pt.trace.json").write_text(json.dumps({"traceEvents": events}))


def write_preprocess_log(path):
    stages = [("read", 2, 0.1), ("prepare", 8, 0.6), ("encode", 1, 0.97), ("write", 1, 0.2)]
    gpu = {"utilization": 0.96, "power_w": 640}
    with path.open("w") as file:
        for i in range(1, 100):
            lines = [
                {"stage": stage, "threads": threads, "rows_per_second": 800 + i % 7, "utilisation": busy}
                for stage, threads, busy in stages
            ]
            line = {"seconds": 5 * i, "stages": lines, "telemetry": [{"host": {"cpu": 0.5}, "gpu": gpu}]}
            file.write(json.dumps(line) + "\n")


def report(*arguments):
    command = [TIDEMILL, "report", *map(str, arguments), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def open_page(driver, path):
    driver.get(path.as_uri())
    wait_for(driver, lambda _: driver.execute_script("return document.querySelectorAll('h2').length") > 3)


def check_console(driver):
    """No error, and no request but for the page itself."""
    errors = [entry for entry in driver.get_log("browser") if entry["level"] == "SEVERE"]
    assert not errors, errors
    events = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    sent = [
        event["params"]["request"]["url"]
        for event in events
        if event["method"] == "Network.requestWillBeSent"
    ]
    assert all(url.startswith(("file:", "data:")) for url in sent), sent


def painted_share(driver):
    """The least share of pixels of any chart that are painted."""
    script = """return Math.min(...[...document.querySelectorAll('.uplot canvas')].map((canvas) => {
      const pixels = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
      let painted = 0;
      for (let i = 3; i < pixels.length; i += 4) painted += pixels[i] > 0;
      return painted / (pixels.length / 4);
    }))"""
    return driver.execute_script(script)


def test_page_draws_all_charts_and_fetches_nothing(folder):
    result = report(folder)
    assert result["bytes"] < 1_000_000, result
    assert len(result["remarks"]) == 1, result
    with browser(DESKTOP) as driver:
        open_page(driver, folder / "report.html")
        sections = driver.execute_script(
            "return [...document.querySelectorAll('h2')].map((one) => one.textContent)"
        )
        assert sections[:7] == [
            "Overview",
            "Loss",
            "Throughput",
            "Communication",
            "GPUs",
            "Memory and machines",
            "Preprocessing",
        ]
        charts = driver.execute_script("return document.querySelectorAll('.uplot canvas').length")
        # All kinds but the validation loss by timestep, which the lines do not have.
        assert charts == 21 + 1 + 6
        assert painted_share(driver) > 0.02
        check_accessibility(driver)
        figures = driver.execute_script(
            "return [...document.querySelectorAll('#figures img')].map((one) => one.alt)"
        )
        assert figures == [
            "One step of rank 0, 350.0 ms; communication 80.0 ms, 80.0 ms of it while nothing is computed"
        ]
        image, slider = "document.querySelector('.card img')", "document.querySelector('input[type=range]')"
        last = driver.execute_script(f"return {image}.src")
        driver.execute_script(f"const one = {slider}; one.value = 0; one.dispatchEvent(new Event('input'))")
        assert driver.execute_script(f"return {image}.src") != last
        assert driver.execute_script(f"return {image}.alt") == "Previews, step 200"
        save_screenshot(driver, "report")
        driver.execute_cdp_cmd(
            "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
        )
        background = "return getComputedStyle(document.body).backgroundColor"
        wait_for(driver, lambda _: driver.execute_script(background) == "rgb(20, 24, 28)")
        assert painted_share(driver) > 0.02
        check_accessibility(driver)
        save_screenshot(driver, "report-dark")
        check_console(driver)


def test_runs_are_laid_side_by_side_on_a_phone(folder, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    lines = (folder / "metrics.jsonl").read_text().splitlines()[: STEPS // 3]
    (other / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    page = tmp_path / "both.html"
    report(folder, other, "--to", page)
    with browser(PHONE) as driver:
        open_page(driver, page)
        width = "return [document.documentElement.scrollWidth, innerWidth]"
        needed, given = driver.execute_script(width)
        assert needed <= given
        labels = driver.execute_script("return document.querySelector('.u-legend').textContent")
        assert f"{folder.name}: loss" in labels
        assert "other: loss" in labels
        save_screenshot(driver, "report-phone")
        check_console(driver)


def test_long_runs_give_small_pages_and_strange_folders_clear_words(tmp_path, make_rng):
    write_metrics(tmp_path / "metrics.jsonl", 30_000, make_rng("report-long"))
    assert report(tmp_path)["bytes"] < 1_500_000
    empty = tmp_path / "empty"
    empty.mkdir()
    refused = subprocess.run([TIDEMILL, "report", empty], capture_output=True, text=True, timeout=60)
    assert refused.returncode == 2
    assert "metrics.jsonl, dataset or evaluations" in refused.stderr


def test_live_page_is_made_anew_for_each_request(folder):
    command = [TIDEMILL, "report", str(folder), "--serve", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            address = server.stdout.readline().split()[4].rstrip(";")
            with urllib.request.urlopen(address, timeout=20) as answer:
                page = answer.read().decode()
                assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
                assert answer.headers["Refresh"] == "15"
            assert f"{STEPS}" in page
        finally:
            server.terminate()
        assert server.wait(20) == 0
