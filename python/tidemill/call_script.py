"""Calls a function of a file of this package, and prints its result or its error as JSON.

Tidemill runs this file with the user's Python. It does not import the package, which would load PyTorch.
"""

import json
import runpy
import sys
from pathlib import Path


def main(file: str, function: str, *arguments: str) -> int:
    """The last line is `{"done": result}` or `{"error": message}`."""
    try:
        functions = runpy.run_path(str(Path(__file__).with_name(file)))
        answer = {"done": functions[function](*arguments)}
    except ModuleNotFoundError as error:
        answer = {"error": f"{error}; pip install {error.name}"}
    # Whatever a library raises is the user's answer.
    except Exception as error:
        answer = {"error": str(error)}
    print(json.dumps(answer))
    return int("error" in answer)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
