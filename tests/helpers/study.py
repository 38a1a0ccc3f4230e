"""Studies of drawn pictures, their servers, and requests to them."""

import http.client
import json
import re
import signal
import sqlite3
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

from PIL import Image

# The binary starts faster than `python -m tidemill`.
TIDEMILL = str(Path(sys.executable).with_name("tidemill"))
COLOURS = {"ours": (200, 60, 60), "theirs": (60, 60, 200), "others": (60, 160, 60)}


def compare(*arguments):
    """Runs a part of `tidemill compare`; returns its result."""
    command = [TIDEMILL, "compare", *map(str, arguments), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def make_study(folder, prompts, models=("ours", "theirs"), **settings):
    """Makes a study with a picture of one colour per model and prompt; returns its database."""
    (folder / "prompts.csv").write_text(
        "Prompts,Category\n" + "".join(f'"{text}",{category}\n' for text, category in prompts)
    )
    lines = [f"prompts = {json.dumps(str(folder / 'prompts.csv'))}"]
    lines += [f"{key} = {json.dumps(value)}" for key, value in settings.items()]
    for model in models:
        pictures = folder / model
        pictures.mkdir()
        for number in range(len(prompts)):
            Image.new("RGB", (256, 256), COLOURS[model]).save(pictures / f"{number:04}.png")
        lines += ["[[source]]", f'name = "{model}"', f"folder = {json.dumps(str(pictures))}"]
    (folder / "study.toml").write_text("\n".join(lines))
    return Path(compare("new", folder / "study.toml")["study"])


def read_rows(study, query):
    """The rows of a query on a study's database."""
    connection = sqlite3.connect(study)
    try:
        return connection.execute(query).fetchall()
    finally:
        connection.close()


class StudyServer:
    """`tidemill compare serve` in a process of its own."""

    def __init__(self, study):
        self.process = subprocess.Popen(
            [TIDEMILL, "compare", "serve", str(study), "--port", "0", "--json"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.log = []
        # Ends when the process does.
        for line in self.process.stderr:
            self.log.append(line)
            if found := re.search(r"shown only once: (\w+)", line):
                self.admin_token = found.group(1)
            if found := re.search(r"http://127\.0\.0\.1:(\d+)/admin", line):
                self.port = int(found.group(1))
                break
        else:
            raise AssertionError("".join(self.log))
        threading.Thread(target=lambda: self.log.extend(self.process.stderr), daemon=True).start()

    def request(self, path, token=None, body=None, connection=None):
        """Sends a request; returns the status and the answer."""
        connection = connection or http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        headers = {"Content-Type": "application/json"}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        method = "GET" if body is None else "POST"
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())

    def stop(self, how=signal.SIGTERM):
        """Ends the process."""
        self.process.send_signal(how)
        self.process.wait(timeout=30)


@contextmanager
def serving(study):
    """A server of a study."""
    server = StudyServer(study)
    try:
        yield server
    finally:
        server.stop()


def invite(study, count):
    """The tokens of new raters."""
    return [link.split("#")[1] for link in compare("invite", study, "--count", count)["links"]]
