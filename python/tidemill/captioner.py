"""Runs a captioner of the user's, `module:callable`, for `[caption] stage`.

Tidemill starts this file in a process of its own, with the user's Python. On its standard input come
requests: a line of JSON with `side`, `captions` and `keys`, then the pixels of the images. It answers each
with a line: `{"captions": [...]}` or `{"error": message}`; first of all with `"ready"`. It imports
nothing of the package, because that would load PyTorch.
"""

import importlib
import inspect
import json
import os
import sys
from collections.abc import Callable
from typing import Any, BinaryIO

import numpy as np


def load(name: str) -> Callable[..., Any]:
    """The callable; a class is instantiated once."""
    sys.path.insert(0, os.getcwd())
    module, _, attribute = name.partition(":")
    target = importlib.import_module(module)
    for part in attribute.split("."):
        target = getattr(target, part)
    return target() if inspect.isclass(target) else target


def read_request(requests: BinaryIO) -> tuple[list[np.ndarray], list[str], list[str]] | None:
    """Images (uint8, height x width x RGB), captions and keys; `None` at the end."""
    line = requests.readline()
    if not line:
        return None
    header = json.loads(line)
    count, side = len(header["captions"]), header["side"]
    pixels = np.frombuffer(requests.read(count * side * side * 3), np.uint8)
    return list(pixels.reshape(count, side, side, 3)), header["captions"], header["keys"]


def check(captions: Any, count: int) -> list[str | None]:
    captions = list(captions)
    if len(captions) != count:
        raise ValueError(f"it returned {len(captions)} captions for {count} images")
    for caption in captions:
        if not isinstance(caption, str | None):
            raise TypeError(f"it returned {type(caption).__name__} as a caption, not str or None")
        # Half of a surrogate pair is no text.
        (caption or "").encode()
    return captions


def main(name: str) -> int:
    # The user's code and its children have standard streams of their own.
    answers, requests = os.fdopen(os.dup(1), "w", encoding="utf-8"), os.fdopen(os.dup(0), "rb")
    os.dup2(2, 1)
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)

    def answer(content: Any) -> None:
        answers.write(json.dumps(content) + "\n")
        answers.flush()

    try:
        captioner = load(name)
    except Exception as error:
        answer({"error": f"{type(error).__name__}: {error}"})
        return 1
    answer("ready")
    while (request := read_request(requests)) is not None:
        images, captions, keys = request
        try:
            answer({"captions": check(captioner(images, captions, keys), len(captions))})
        except Exception as error:
            answer({"error": f"{type(error).__name__}: {error}"})
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
