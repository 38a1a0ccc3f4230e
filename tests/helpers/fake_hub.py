"""A server that answers like the Hugging Face Hub, as far as `huggingface_hub` asks when it downloads and
uploads a folder of small files.
"""

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class FakeHub(ThreadingHTTPServer):
    """`repositories` has the files of each `user/name`; `requests` what was asked for."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.repositories: dict[str, dict[str, bytes]] = {}
        self.requests: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: FakeHub

    def log_message(self, *arguments):
        pass

    def do_GET(self):
        self.server.requests.append(f"GET {self.path}")
        self.answer_read()

    def do_HEAD(self):
        self.answer_read()

    def answer_read(self):
        parts = self.path.split("?")[0].strip("/").split("/")
        if parts[:2] == ["api", "models"]:
            files = self.server.repositories.get("/".join(parts[2:4]))
            name = "/".join(parts[2:4])
            siblings = [{"rfilename": file} for file in files or ()]
            if parts[4:5] == ["tree"]:
                return self.send_json([self.describe(*file) for file in (files or {}).items()])
            found = {"id": name, "modelId": name, "sha": COMMIT, "siblings": siblings, "private": False}
            return self.send_json(found) if files is not None else self.send_missing("RepoNotFound")
        file = self.server.repositories.get("/".join(parts[:2]), {}).get("/".join(parts[4:]))
        if file is None:
            return self.send_missing("EntryNotFound")
        self.send_response(200)
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("ETag", f'"{hashlib.sha256(file).hexdigest()}"')
        self.send_header("Content-Length", str(len(file)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(file)

    @staticmethod
    def describe(path, content):
        digest = hashlib.sha1(content).hexdigest()
        return {"type": "file", "path": path, "size": len(content), "oid": digest}

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        parts = self.path.split("?")[0].strip("/").split("/")
        if self.path == "/api/repos/create":
            request = json.loads(body)
            name = "/".join(filter(None, [request.get("organization"), request["name"]]))
            self.server.repositories.setdefault(name, {})
            return self.send_json({"url": f"{self.server.url}/{name}", "id": name})
        name = "/".join(parts[2:4])
        if parts[4] == "preupload":
            wanted = json.loads(body)["files"]
            modes = [
                {"path": file["path"], "uploadMode": "regular", "shouldIgnore": False} for file in wanted
            ]
            return self.send_json({"files": modes})
        for line in body.decode().splitlines():
            operation = json.loads(line)
            if operation["key"] == "file":
                value = operation["value"]
                self.server.repositories[name][value["path"]] = base64.b64decode(value["content"])
        url = f"{self.server.url}/{name}/commit/{COMMIT}"
        self.send_json({"success": True, "commitOid": COMMIT, "commitUrl": url})

    def send_json(self, value):
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def send_missing(self, code):
        self.send_response(404)
        self.send_header("X-Error-Code", code)
        self.send_header("X-Error-Message", f"{self.path}: {code}")
        self.send_header("Content-Length", "0")
        self.end_headers()


@contextmanager
def serve() -> Iterator[FakeHub]:
    """Runs a server until the block ends."""
    hub = FakeHub()
    thread = threading.Thread(target=hub.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.shutdown()
        hub.server_close()
