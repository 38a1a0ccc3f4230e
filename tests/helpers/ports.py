"""TCP ports for servers that the tests start."""

import itertools
import os
import socket

# Below Linux's ephemeral ports (32768 and up), so that no outgoing connection takes one meanwhile.
# Each process begins in another place, so that test processes that run at the same time do not
# meet.
FIRST, COUNT = 20000, 12000
_candidates = itertools.count(os.getpid() * 97)


def find_free_port():
    """A port on which nothing listens. It returns another one each time."""
    for number in itertools.islice(_candidates, COUNT):
        port = FIRST + number % COUNT
        with socket.socket() as listener:
            try:
                listener.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise OSError("no free port")
