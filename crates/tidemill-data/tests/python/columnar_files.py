"""The same pairs in Parquet and Arrow IPC, by pyarrow, polars and DuckDB with all codecs and encodings."""

import datetime
import json
import random
import sys
from pathlib import Path

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as encryption

seed, root = int(sys.argv[1]), Path(sys.argv[2])
random = random.Random(seed)
ROWS = 300

images = [random.randbytes(random.randrange(1, 400)) for _ in range(ROWS)]
captions = [random.choice(["a red", "a blue", "ein grünes", "☃"]) + f" thing {n % 40}" for n in range(ROWS)]
table = pa.table(
    {
        "image": pa.array(images, pa.binary()),
        "caption": captions,
        "score": [random.random() for _ in range(ROWS)],
        "when": [datetime.datetime(2020, 1, 1) + datetime.timedelta(hours=n) for n in range(ROWS)],
        "count": pa.array(range(ROWS), pa.int32()),
    }
)
files = []


def path(name: str) -> str:
    files.append(name)
    return str(root / name)


for codec in ["none", "snappy", "gzip", "brotli", "zstd", "lz4"]:
    for version, pages in [("1.0", "1.0"), ("2.6", "2.0")]:
        name = path(f"pyarrow-{codec}-{version}.parquet")
        pq.write_table(
            table, name, compression=codec, version=version, data_page_version=pages, row_group_size=70
        )
text = {"image": "DELTA_LENGTH_BYTE_ARRAY", "caption": "DELTA_BYTE_ARRAY", "count": "DELTA_BINARY_PACKED"}
split = {"score": "BYTE_STREAM_SPLIT", "count": "BYTE_STREAM_SPLIT"}
options = {
    "delta": {"use_dictionary": False, "column_encoding": text},
    "split": {"use_dictionary": False, "column_encoding": split},
    # Dictionaries that overflow: later pages are plain.
    "dictionary": {"dictionary_pagesize_limit": 600, "data_page_size": 500, "write_batch_size": 16},
    "int96": {"use_deprecated_int96_timestamps": True},
    "index": {
        "write_page_index": True,
        "data_page_size": 1000,
        "write_page_checksum": True,
        "store_decimal_as_integer": True,
    },
    "bloom": {"bloom_filter_options": {"caption": {"ndv": 100}}},
}
for name, option in options.items():
    pq.write_table(table, path(f"pyarrow-{name}.parquet"), **option)
for name, types in {
    "views": {"image": pa.binary_view(), "caption": pa.string_view()},
    "large": {"image": pa.large_binary(), "caption": pa.large_string()},
    "dictionaries": {"caption": pa.dictionary(pa.int32(), pa.string())},
}.items():
    columns = {
        column: table[column].cast(types.get(column, table[column].type)) for column in table.column_names
    }
    other = pa.table(columns)
    pq.write_table(other, path(f"pyarrow-{name}.parquet"))
    if name != "dictionaries":
        with pa.ipc.new_file(path(f"pyarrow-{name}.arrow"), other.schema) as writer:
            writer.write_table(other, max_chunksize=70)

frame = pl.from_arrow(table)
for codec in ["uncompressed", "snappy", "gzip", "brotli", "zstd", "lz4"]:
    frame.write_parquet(path(f"polars-{codec}.parquet"), compression=codec, row_group_size=70)
for codec in ["uncompressed", "lz4", "zstd"]:
    frame.write_ipc(path(f"polars-{codec}.arrow"), compression=codec)
frame.write_ipc_stream(path("polars-stream.arrow"))

connection = duckdb.connect()
connection.register("pairs", table)
for codec in ["uncompressed", "snappy", "gzip", "zstd", "lz4", "lz4_raw", "brotli"]:
    for version in ["V1", "V2"]:
        name = path(f"duckdb-{codec}-{version}.parquet")
        connection.execute(
            f"copy pairs to '{name}' "
            f"(format parquet, codec '{codec}', parquet_version '{version}', row_group_size 70)"
        )

# One dictionary for all record batches, as a column of Arrow has it; and one that grows between them.
encoded = table.set_column(1, "caption", table["caption"].combine_chunks().dictionary_encode())
for name, deltas in [("dictionary", False), ("deltas", True)]:
    options = pa.ipc.IpcWriteOptions(emit_dictionary_deltas=deltas)
    with pa.ipc.new_stream(path(f"pyarrow-{name}.arrow"), encoded.schema, options=options) as writer:
        for start in range(0, ROWS, 70):
            part = encoded.slice(start, 70)
            if deltas:
                words = encoded["caption"].chunk(0).dictionary
                count = min(len(words), 10 + start)
                kept = [
                    text if text in words[:count].to_pylist() else words[0].as_py()
                    for text in part["caption"].to_pylist()
                ]
                values = pa.array(kept).dictionary_encode()
                indices = pa.compute.index_in(pa.array(kept), words[:count])
                values = pa.DictionaryArray.from_arrays(indices.cast(pa.int32()), words[:count])
                part = part.set_column(1, "caption", values)
            writer.write_table(part)
for codec in ["uncompressed", "lz4", "zstd"]:
    pyarrow.feather.write_feather(table, path(f"pyarrow-{codec}.arrow"), compression=codec, chunksize=70)
# As `datasets.save_to_disk` writes: a stream of small record batches.
with pa.ipc.new_stream(path("pyarrow-stream.arrow"), table.schema) as writer:
    for batch in table.to_batches(max_chunksize=10):
        writer.write_batch(batch)


class Vault(encryption.KmsClient):
    """Keys that are not secret."""

    def wrap_key(self, key: bytes, master_key: str) -> bytes:
        return key

    def unwrap_key(self, wrapped: bytes, master_key: str) -> bytes:
        return wrapped


for name, plain in [("footer", False), ("columns", True)]:
    config = encryption.EncryptionConfiguration(
        footer_key="f", column_keys={"k": ["caption"]}, plaintext_footer=plain
    )
    factory = encryption.CryptoFactory(lambda _: Vault())
    properties = factory.file_encryption_properties(encryption.KmsConnectionConfig(), config)
    pq.write_table(table, root / f"encrypted-{name}.parquet", encryption_properties=properties)

for number, image in enumerate(images):
    (root / f"{number}.image").write_bytes(image)
rows = {"captions": captions, "scores": table["score"].to_pylist()}
(root / "index.json").write_text(json.dumps({"files": files, **rows}))
