"""Pairs in the layouts of popular tools, each with the `[source]` that reads it and the rows expected."""

import csv
import io
import json
import random
import sys
import tarfile
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
from PIL import Image

seed, root = int(sys.argv[1]), Path(sys.argv[2])
random = random.Random(seed)
cases = []


def png(number: int) -> bytes:
    out = io.BytesIO()
    color = (number, random.randrange(256), random.randrange(256))
    Image.new("RGB", (8 + number, 9), color).save(out, "PNG")
    return out.getvalue()


IMAGES = [png(number) for number in range(4)]
CAPTIONS = [f'caption {n}: "quoted", ünïcode ☃ {random.random()}' for n in range(4)]


def add(name: str, source: dict, rows: list, fields: list | None = None) -> None:
    """`rows` are image (its number), caption (a text or a list) and the start of an error."""
    source["uri"] = str(root / source["uri"])
    if "image_root" in source:
        source["image_root"] = str(root / source["image_root"])
    rows = [{"image": image, "caption": caption, "error": error} for image, caption, error in rows]
    cases.append({"name": name, "source": source, "rows": rows, "fields": fields})


def write(path: str, content: bytes | str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_bytes(content.encode() if isinstance(content, str) else content)


def tar_of(members: list[tuple[str, bytes | str]]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, data in members:
            data = data.encode() if isinstance(data, str) else data
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


pairs = [(n, CAPTIONS[n], None) for n in range(4)]
write("images/a.png", IMAGES[0])
for number in range(4):
    write(f"images/{number}.png", IMAGES[number])

# Image folders with metadata, as Hugging Face's imagefolder.
for extension in ["jsonl", "csv", "parquet"]:
    folder = f"metadata_{extension}"
    rows = [{"file_name": f"{n}.png", "text": CAPTIONS[n], "n": n} for n in range(4)]
    for number in range(4):
        write(f"{folder}/train/{number}.png", IMAGES[number])
    path = root / folder / "train" / f"metadata.{extension}"
    if extension == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif extension == "csv":
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows(rows)
    else:
        pq.write_table(pa.Table.from_pylist(rows), path)
    columns = {"caption": "text"}
    add(f"imagefolder, {extension}", {"format": "images", "uri": folder, "columns": columns}, pairs)
write("metadata_prefix/train/0.png", IMAGES[0])
write("metadata_prefix/train/1.png", IMAGES[1])
write("metadata_prefix/train/2.png", IMAGES[2])
lines = [{"file_name": "train/0.png", "text": "prefixed"}, {"file_name": "1.png", "text": "plain"}]
write("metadata_prefix/train/metadata.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
add(
    "names from the source's folder",
    {"format": "images", "uri": "metadata_prefix", "columns": {"caption": "text"}},
    [(0, "prefixed", None), (1, "plain", None), (None, None, "container: no line of ")],
)

# Captions beside images: kohya, SimpleTuner, img2dataset's `files`.
for number in range(4):
    write(f"kohya/10_dog/{number}.png", IMAGES[number])
    if number != 3:
        write(f"kohya/10_dog/{number}.{'txt' if number else 'caption'}", CAPTIONS[number])
write("kohya/10_dog/sample.prompt", "not a caption")
add(
    "captions beside images",
    {"format": "images", "uri": "kohya", "carry": ["repeats"]},
    [*pairs[:3], (3, None, "missing: the caption is null; the sample's files end in .png")],
    ["10"] * 4,
)
add(
    "the folder's name as the last caption",
    {"format": "images", "uri": "kohya", "columns": {"caption": ["caption", "folder"]}},
    [*pairs[:3], (3, None, None)],
    None,
)
for number in range(4):
    key = f"0000{number}"
    fields = {"caption": CAPTIONS[number], "status": "success", "key": key, "original_width": 9}
    write(f"img2dataset/00000/{key}.png", IMAGES[number])
    write(f"img2dataset/00000/{key}.txt", CAPTIONS[number])
    write(f"img2dataset/00000/{key}.json", json.dumps(fields))
write("img2dataset/00000_stats.json", "{}")
write("img2dataset/00000.parquet", "statistics, which are not read")
add(
    "img2dataset's files",
    {"format": "images", "uri": "img2dataset", "carry": ["original_width"]},
    pairs,
    ["9"] * 4,
)

# JSON lines: lists of captions, nested fields, another folder of images.
lines = [
    {"image": "images/0.png", "caption": ["a", None, "b"], "meta": {"text": ["x", "y"]}},
    {"image": "images/1.png", "caption": "alone", "meta": {"text": ["z"]}},
    {"image": "images/2.png", "caption": [], "meta": None},
    {"image": "images/3.png", "caption": [["deep"]], "meta": {"text": 3}},
]
write("lists.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
add(
    "lists of captions",
    {"format": "jsonl", "uri": "lists.jsonl"},
    [(0, ["a", None, "b"], None), (1, ["alone"], None), (2, [], None), (3, None, "type: an array where ")],
)
for path, expected in [
    ("meta.text[0]", ["x", "z", None, None]),
    ("meta.text[1]", ["y", None, None, None]),
    ("meta.text[*]", [["x", "y"], ["z"], None, None]),
]:
    add(
        f"nested field {path}",
        {"format": "jsonl", "uri": "lists.jsonl", "columns": {"caption": path}},
        [(n, caption, None) for n, caption in enumerate(expected)],
    )
write(
    "elsewhere/lines.jsonl",
    "".join(json.dumps({"image": f"{n}.png", "caption": "c"}) + "\n" for n in range(4)),
)
add(
    "images in another folder",
    {"format": "jsonl", "uri": "elsewhere/lines.jsonl", "image_root": "images"},
    [(n, "c", None) for n in range(4)],
)
paths = pa.table({"image": [f"{n}.png" for n in range(4)], "caption": CAPTIONS})
pq.write_table(paths, root / "elsewhere" / "paths.parquet")
add("paths in Parquet", {"uri": "elsewhere/paths.parquet", "image_root": "images"}, pairs)

# TSV without a header: CC12M, LAION.
captions = ['"a quote that is never closed', "plain", 'in "the" middle', "last"]
write("pairs.tsv", "".join(f"{root}/images/{n}.png\t{captions[n]}\n" for n in range(4)))
add(
    "TSV without a header",
    {
        "format": "csv",
        "uri": "pairs.tsv",
        "csv": {"delimiter": "\t", "quote": "", "columns": ["url", "caption"]},
        "columns": {"image": "url"},
    },
    [(n, captions[n], None) for n in range(4)],
)

# COCO.
write(
    "coco/annotations/captions_train.json",
    json.dumps(
        {
            "info": {},
            "images": [{"id": 10 + n, "file_name": f"{n}.png", "width": 8} for n in range(4)],
            "annotations": [
                {"image_id": 10 + n, "id": 2 * n + k, "caption": f"{CAPTIONS[n]} {k}"}
                for k in range(2)
                for n in range(3)
            ],
        }
    ),
)
add(
    "COCO's captions",
    {"format": "coco", "uri": "coco/annotations", "image_root": "images"},
    [(n, [f"{CAPTIONS[n]} {k}" for k in range(2)], None) for n in range(3)] + [(3, [], None)],
)

# WebDataset: dots in names, members apart, zstd, zip.
members = []
for number in range(4):
    members += [(f"s/{number}.png", IMAGES[number]), (f"s/{number}.txt", CAPTIONS[number])]
write("plain.tar", tar_of(members))
write("zstd.tar.zst", pa.compress(tar_of(members), codec="zstd", asbytes=True))
half = len(members) // 2
frames = [
    pa.compress(part, codec="zstd", asbytes=True) for part in (tar_of(members)[:999], tar_of(members)[999:])
]
write("frames.tar.zst", b"".join(frames))
for name in ["plain.tar", "zstd.tar.zst", "frames.tar.zst"]:
    add(name, {"format": "webdataset", "uri": name}, pairs)
for name, compression in [("stored.zip", zipfile.ZIP_STORED), ("deflated.zip", zipfile.ZIP_DEFLATED)]:
    shuffled = random.sample(members, len(members))
    with zipfile.ZipFile(root / name, "w", compression) as archive:
        archive.mkdir("s")
        for path, data in shuffled:
            archive.writestr(path, data)
    add(name, {"format": "webdataset", "uri": name}, pairs)
dots = [
    ("22.05.png", IMAGES[0]),
    ("22.05.txt", "a dotted name"),
    ("v1.0/1.png", IMAGES[1]),
    ("v1.0/1.txt", "a dotted folder"),
    ("2.png", IMAGES[2]),
    ("2.caption", "another ending"),
    ("3.png", IMAGES[3]),
    ("3.json", json.dumps({"caption": "nested", "list": ["p", "q"]})),
]
write("dots.tar", tar_of(dots))
rest = [(1, "a dotted folder", None), (2, "another ending", None), (3, "nested", None)]
add(
    "dots in names",
    {"format": "webdataset", "uri": "dots.tar"},
    [(None, None, "missing: the image is null; the sample's files end in .05.png, .05.txt"), *rest],
)
add(
    "keys that end at the last dot",
    {"format": "webdataset", "uri": "dots.tar", "key_split": "last_dot"},
    [(0, "a dotted name", None), *rest],
)
add(
    "a field of a sample's JSON",
    {
        "format": "webdataset",
        "uri": "dots.tar",
        "key_split": "last_dot",
        "columns": {"caption": "json.list[1]"},
    },
    [*((n, None, None) for n in range(3)), (3, "q", None)],
)
apart = [("a.png", IMAGES[0]), ("b.png", IMAGES[1]), ("a.txt", "a"), ("b.txt", "b")]
write("apart.tar", tar_of(apart))
again = "missing: the image is null; the sample's files end in .txt; its key has come before: the members"
add(
    "members that are not neighbours",
    {"format": "webdataset", "uri": "apart.tar"},
    [
        (0, None, "missing: the caption is null"),
        (1, None, "missing: the caption is null"),
        (None, "a", again),
        (None, "b", again),
    ],
)

# Hugging Face's Parquet: images in lists, structs within structs.
struct = [{"bytes": image, "path": f"{n}.png"} for n, image in enumerate(IMAGES)]
table = pa.table(
    {
        "images": [[struct[0]], [struct[1], struct[0]], [], None],
        "json": [{"caption": caption, "tags": [{"raw": caption}]} for caption in CAPTIONS],
    }
)
pq.write_table(table, root / "nested.parquet")
for position, images in [(0, [0, 1, None, None]), (1, [None, 0, None, None])]:
    add(
        f"image {position} of a list",
        {"uri": "nested.parquet", "columns": {"image": f"images[{position}]", "caption": "json.caption"}},
        [(image, CAPTIONS[n], None) for n, image in enumerate(images)],
    )
add(
    "texts of a list of structs",
    {"uri": "nested.parquet", "columns": {"image": "images[0]", "caption": "json.tags[*].raw"}},
    [(image, [CAPTIONS[n]], None) for n, image in enumerate([0, 1, None, None])],
)

for number, image in enumerate(IMAGES):
    (root / f"{number}.image").write_bytes(image)
(root / "cases.json").write_text(json.dumps(cases))
