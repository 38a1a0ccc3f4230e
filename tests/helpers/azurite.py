"""Azurite, Microsoft's emulator of Azure Blob Storage, and files there through Microsoft's own client."""

import base64
import os
import secrets
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyarrow import fs

from helpers.ports import find_free_port

PROGRAM = Path(__file__).resolve().parents[2] / ".venv-emulators/node_modules/.bin/azurite-blob"
ACCOUNT = "tidemill"


class Azurite:
    """A server with an account of its own."""

    def __init__(self, port: int, key: str):
        self.port, self.key = port, key
        self.files = fs.AzureFileSystem(
            ACCOUNT,
            account_key=key,
            blob_storage_authority=f"127.0.0.1:{port}",
            blob_storage_scheme="http",
            dfs_storage_authority=f"127.0.0.1:{port}",
            dfs_storage_scheme="http",
        )

    def variables(self, port: int | None = None, **others: str) -> dict[str, str]:
        """The environment of processes that use the server, or a proxy at a port in front of it."""
        azure = {
            "AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT,
            "AZURE_STORAGE_ACCOUNT_KEY": self.key,
            "AZURE_STORAGE_ENDPOINT": f"http://127.0.0.1:{port or self.port}/{ACCOUNT}",
        }
        return {**os.environ, **azure, **others}

    def make_container(self, name: str, folder: Path | None = None) -> None:
        """Makes a container with copies of a folder's files."""
        self.files.create_dir(name)
        for path in folder.iterdir() if folder else ():
            with self.files.open_output_stream(f"{name}/{path.name}") as stream:
                stream.write(path.read_bytes())

    def list_keys(self, folder: str) -> list[str]:
        """The keys below a folder of a container, without the folder."""
        found = self.files.get_file_info(fs.FileSelector(folder, recursive=True, allow_not_found=True))
        return [one.path.removeprefix(f"{folder}/") for one in found if one.is_file]


@contextmanager
def serve(folder: Path) -> Iterator[Azurite]:
    """Runs a server with its data in a folder until the block ends."""
    port, key = find_free_port(), base64.b64encode(secrets.token_bytes(32)).decode()
    # pyarrow's client names a newer version of the API than Azurite knows.
    options = ["--silent", "--disableTelemetry", "--skipApiVersionCheck"]
    command = [PROGRAM, "--blobPort", str(port), "--location", folder, *options]
    with (folder / "azurite.log").open("w") as log:
        variables = {**os.environ, "AZURITE_ACCOUNTS": f"{ACCOUNT}:{key}"}
        process = subprocess.Popen(command, stdout=log, stderr=log, env=variables)
    try:
        wait_until_listening(process, port, folder / "azurite.log")
        yield Azurite(port, key)
    finally:
        process.terminate()
        process.wait(timeout=30)


def wait_until_listening(process: subprocess.Popen, port: int, log: Path, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and process.poll() is None:
        with socket.socket() as client:
            if client.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise AssertionError(f"Azurite does not listen: {log.read_text()}")
