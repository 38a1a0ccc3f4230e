"""Sends a run's metrics, pictures and configuration to Weights & Biases and MLflow.

The trainer starts this file in a process of its own, with the Python that has the user's clients. It
reads lines of JSON: the start (`config`, `folder`, `wandb`, `mlflow`), then steps with `scalars` or
`pictures`, at last `failed`. It answers `ready` or `error`, later `problem`. It imports nothing of
the package, because that would load PyTorch.
"""

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any


class Wandb:
    """Weights & Biases. `[track]` has arguments of `wandb.init`."""

    name = "wandb"

    def start(self, start: dict[str, Any], run_id: str | None) -> None:
        import wandb

        config, settings = start["config"], start["wandb"]
        arguments = {"name": config["name"], "config": config, "dir": start["folder"]}
        if run_id is not None:
            arguments |= {"id": run_id, "resume": "allow", "allow_val_change": True}
        arguments |= settings
        # What this process prints is not the training's.
        arguments["settings"] = {"console": "off", "quiet": True, **settings.get("settings", {})}
        os.makedirs(arguments["dir"], exist_ok=True)
        self.run, self.make_image = wandb.init(**arguments), wandb.Image
        # W&B's own counter only rises: it would drop the steps that come again after a rollback.
        self.run.define_metric("*", step_metric="step")
        self.run_id, self.folder = self.run.id, self.run.settings.sync_dir
        self.url = self.folder if self.run.offline else self.run.url

    def log_scalars(self, step: int, scalars: dict[str, float]) -> None:
        self.run.log({"step": step, **scalars})

    def log_picture(self, step: int, tag: str, path: str) -> None:
        self.run.log({"step": step, tag: self.make_image(path)})

    def finish(self, failed: bool) -> None:
        self.run.finish(exit_code=int(failed))


class Mlflow:
    """MLflow: a server, a database or a folder."""

    name, folder = "mlflow", None

    def start(self, start: dict[str, Any], run_id: str | None) -> None:
        # A server that does not answer is given up after half a minute, not after minutes.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "4")
        import mlflow

        self.mlflow, config, settings = mlflow, start["config"], start["mlflow"]
        if settings.get("tracking_uri"):
            mlflow.set_tracking_uri(settings["tracking_uri"])
        if settings.get("experiment") and run_id is None:
            mlflow.set_experiment(settings["experiment"])
        run = mlflow.start_run(run_id=run_id, run_name=settings.get("run_name") or config["name"])
        self.run_id, self.url = run.info.run_id, mlflow.get_tracking_uri()
        # MLflow refuses to change parameters: they are the first start's, and the file is the last's.
        mlflow.log_dict(config, "config.json")
        mlflow.log_params({key: value for key, value in flatten(config) if key not in run.data.params})

    def log_scalars(self, step: int, scalars: dict[str, float]) -> None:
        self.mlflow.log_metrics(scalars, step=step)

    def log_picture(self, step: int, tag: str, path: str) -> None:
        self.mlflow.log_artifact(path, tag)

    def finish(self, failed: bool) -> None:
        self.mlflow.end_run("FAILED" if failed else "FINISHED")


def flatten(table: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """The values of nested tables as text, by dotted key. Older MLflow servers take 500 characters."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from flatten(value, f"{prefix}{key}.")
        elif text := value if isinstance(value, str) else json.dumps(value):
            yield prefix + key, text[:500]


def start_clients(start: dict[str, Any], answer: Callable[..., None]) -> list[Wandb | Mlflow]:
    """Starts the clients of `[track]`. They continue the runs whose ids the folder has."""
    path = Path(start["folder"], "tracking.json")
    path.parent.mkdir(parents=True, exist_ok=True)
    ids, clients = json.loads(path.read_text()) if path.exists() else {}, []
    for client in [make() for make in (Wandb, Mlflow) if start[make.name] is not None]:
        try:
            client.start(start, ids.get(client.name))
        except Exception as error:
            message, is_missing = f"{type(error).__name__}: {error}", isinstance(error, ImportError)
            if is_missing:
                message += f"; install it: {sys.executable} -m pip install {client.name}"
            elif client.name in ids:
                # A tracker that is out of order must not end a run that has begun.
                answer(problem=f"{client.name} does not start; delete {path} for a new run: {message}")
                continue
            answer(error={"client": client.name, "message": message})
            sys.exit(1)
        clients.append(client)
        ids[client.name] = client.run_id
        path.with_suffix(".new").write_text(json.dumps(ids))
        path.with_suffix(".new").replace(path)
    return clients


def send(client: Wandb | Mlflow, message: dict[str, Any]) -> None:
    """Sends what a message has of a step, or of the end."""
    if "failed" in message:
        client.finish(message["failed"])
    if message.get("scalars"):
        client.log_scalars(message["step"], message["scalars"])
    for tag, path in message.get("pictures", {}).items():
        client.log_picture(message["step"], tag, path)


def main() -> None:
    """Sends what the trainer writes, until it closes standard input."""
    # A signal reaches all processes of a service. The trainer still sends its last steps after it.
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    # Clients print to standard output, too.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(**message: Any) -> None:
        with suppress(OSError):
            print(json.dumps(message), file=answers, flush=True)

    clients = start_clients(json.loads(sys.stdin.readline()), answer)
    answer(ready=[{"url": client.url, "folder": client.folder} for client in clients])
    failing: set[str] = set()
    # A trainer that is killed may leave half a line, and does not say how it ended.
    messages = (json.loads(line) for line in sys.stdin if line.endswith("\n"))
    for message in chain(messages, [{"failed": True}]):
        for client in clients:
            try:
                send(client, message)
                failing.discard(client.name)
            except Exception as error:
                # Once, until it works again.
                if client.name not in failing:
                    answer(problem=f"{client.name}: {error}")
                failing.add(client.name)
        if "failed" in message:
            break


if __name__ == "__main__":
    main()
