"""Scores that are computed in preprocessing, beside transformers; and what re-runs do again."""

import io
import json
import re
import shutil
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tidemill
import torch
from helpers import training
from helpers.pairs import keyed_settings, read_rows
from PIL import Image
from safetensors.torch import load_file, save_file
from tidemill import InputError
from transformers import CLIPConfig, CLIPImageProcessorPil, CLIPModel, CLIPTokenizer

SIDE, ROWS = 48, 100


@pytest.fixture(scope="module")
def folder(tmp_path_factory, make_rng):
    """A CLIP model, heads and pairs."""
    folder = tmp_path_factory.mktemp("scores")
    rng = make_rng("computed-scores")
    torch.manual_seed(rng.randrange(2**31))
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    text = {**sizes, "vocab_size": 49408, "max_position_embeddings": 77, "eos_token_id": 49407}
    vision = {**sizes, "image_size": SIDE, "patch_size": 8}
    config = CLIPConfig(text_config=text, vision_config=vision, projection_dim=24)
    CLIPModel(config).save_pretrained(folder / "clip")
    crop = {"height": SIDE, "width": SIDE}
    CLIPImageProcessorPil(size={"shortest_edge": SIDE}, crop_size=crop).save_pretrained(folder / "clip")
    shutil.copytree(training.ASSETS / "tokenizer", folder / "clip", dirs_exist_ok=True)
    # LAION's layout: layers without activations, numbered with gaps where dropout was.
    layers = {
        f"layers.{i}": torch.nn.Linear(*shape) for i, shape in {0: (24, 16), 2: (16, 8), 10: (8, 1)}.items()
    }
    aesthetic = {
        f"{name}.{part}": p for name, layer in layers.items() for part, p in layer.named_parameters()
    }
    save_file({name: p.detach() for name, p in aesthetic.items()}, folder / "aesthetic.safetensors")
    nsfw = torch.nn.Sequential(torch.nn.Linear(24, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3, bias=False))
    save_file({name: p.detach() for name, p in nsfw.named_parameters()}, folder / "nsfw.safetensors")
    write_rows(folder / "pairs.parquet", rng)
    return folder


def write_rows(path, rng):
    """Images of any size and shape; one is damaged, one too small, one has no caption."""
    images = [photo(rng, rng.randrange(64, 200), rng.randrange(64, 200)) for _ in range(ROWS)]
    captions = [f"picture {i} of {rng.choice(['a dog', 'two cats', 'the sea'])}" for i in range(ROWS)]
    images[3], captions[5], images[7] = b"no image", None, photo(rng, 31, 90)
    keys = [str(i) for i in range(ROWS)]
    pq.write_table(pa.table({"key": keys, "jpg": images, "caption": captions}), path, row_group_size=20)


def photo(rng, width, height):
    """A PNG of coloured blocks, so that images differ to the network."""
    blocks = np.frombuffer(rng.randbytes(48), np.uint8).reshape(4, 4, 3)
    file = io.BytesIO()
    Image.fromarray(blocks).resize((width, height), rng.choice([0, 2, 3])).save(file, "PNG")
    return file.getvalue()


def settings(folder, output, **more):
    scores = {
        "path": str(folder / "clip"),
        "similarity": True,
        "heads": {
            "aesthetic": {"path": str(folder / "aesthetic.safetensors")},
            "nsfw": {
                "path": str(folder / "nsfw.safetensors"),
                "activation": "relu",
                "output": "softmax",
                "class": 2,
            },
        },
    }
    return keyed_settings(folder, output, batch_size=16, **{"score": scores, **more})


def expected_scores(folder):
    """What transformers and PyTorch give, by key."""
    model, processor = (
        CLIPModel.from_pretrained(folder / "clip"),
        CLIPImageProcessorPil.from_pretrained(folder / "clip"),
    )
    tokenizer = CLIPTokenizer.from_pretrained(folder / "clip")
    found = {}
    for row in pq.read_table(folder / "pairs.parquet").to_pylist():
        if row["jpg"] == b"no image" or row["caption"] is None:
            continue
        image = processor(Image.open(io.BytesIO(row["jpg"])).convert("RGB"), return_tensors="pt")
        ids = tokenizer(row["caption"], padding="max_length", truncation=True, return_tensors="pt")
        with torch.no_grad():
            outputs = model(**ids, **image)
            features, texts = outputs.image_embeds, outputs.text_embeds
            found[row["key"]] = (
                run_head(folder / "aesthetic.safetensors", features, torch.nn.Identity())[0, 0].item(),
                run_head(folder / "nsfw.safetensors", features, torch.nn.ReLU()).softmax(-1)[0, 2].item(),
                (features * texts).sum().item(),
            )
    return found


def run_head(path, x, activation):
    tensors = load_file(path)
    numbers = sorted({int(re.search(r"\d+", name)[0]) for name in tensors})
    for number in numbers:
        part = {
            name.rsplit(".", 1)[1]: p
            for name, p in tensors.items()
            if re.search(r"\d+", name)[0] == str(number)
        }
        x = torch.nn.functional.linear(x, part["weight"], part.get("bias"))
        x = x if number == numbers[-1] else activation(x)
    return x


def find_bound(expected, rank):
    """The middle of the widest gap near a rank of the aesthetic scores, so that rounding decides nothing."""
    scores = sorted(scores[0] for scores in expected.values())[rank - 8 : rank + 8]
    _, bound = max((above - below, (above + below) / 2) for below, above in pairwise(scores))
    return bound


NAMES = ("aesthetic", "nsfw", "clip_similarity")


def test_scores_equal_those_of_transformers_and_filter_rows(folder):
    expected = expected_scores(folder)
    bound = find_bound(expected, ROWS // 3)
    bounds = {"score": {"aesthetic": {"min": bound}}}
    counts = tidemill.preprocess(settings(folder, "first", filter=bounds))["rows"]
    rows = read_rows(folder / "first")
    assert len(rows) == ROWS
    for key, row in rows.items():
        if row["status"] == "quarantined" or row["reason"] == "resolution":
            assert [row[name] for name in NAMES] == [None] * 3
            continue
        np.testing.assert_allclose([row[name] for name in NAMES], expected[key], atol=2e-5, rtol=2e-5)
        is_below = row["aesthetic"] < bound
        assert (row["status"], row["reason"]) == (
            ("rejected", "score.aesthetic") if is_below else ("kept", None)
        )
    rejected = sum(row["reason"] == "score.aesthetic" for row in rows.values())
    assert counts["rejected"] - 1 == rejected > ROWS // 5

    # Another bound: known scores decide, and only newly accepted images are encoded.
    lower = find_bound(expected, ROWS // 6)
    wider = {"score": {"aesthetic": {"min": lower}}}
    result = tidemill.preprocess(settings(folder, "first", filter=wider))
    assert result["this_run"]["encoded"]["images"] == result["rows"]["kept"] - counts["kept"] > 0
    fresh = tidemill.preprocess(settings(folder, "fresh", filter=wider))
    assert fresh["rows"] == result["rows"]
    again, new = read_rows(folder / "first"), read_rows(folder / "fresh")
    for key, row in again.items():
        assert (row["status"], row["reason"]) == (new[key]["status"], new[key]["reason"])

    # One more bound on a score that is known of all rows: nothing is encoded at all.
    both = {"score": {**wider["score"], "clip_similarity": {"min": 0.0}}}
    result = tidemill.preprocess(settings(folder, "first", filter=both))
    assert result["this_run"]["encoded"] == {"images": 0, "captions": 0}
    for row in read_rows(folder / "first").values():
        assert row["status"] != "kept" or row["clip_similarity"] >= 0.0


def test_changed_head_computes_scores_again_and_copies_tensors(folder):
    tidemill.preprocess(settings(folder, "heads"))
    before = read_rows(folder / "heads")
    changed = settings(folder, "heads")
    changed["score"]["heads"]["aesthetic"]["output"] = "sigmoid"
    result = tidemill.preprocess(changed)
    assert result["this_run"]["encoded"] == {"images": 0, "captions": 0}
    for key, row in read_rows(folder / "heads").items():
        old = before[key]
        if old["aesthetic"] is not None:
            assert row["aesthetic"] == pytest.approx(1 / (1 + np.exp(-old["aesthetic"])), abs=1e-6)
        assert (row["nsfw"], row["clip_similarity"]) == (old["nsfw"], old["clip_similarity"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"path": ""}, "score.path"),
        ({"similarity": False, "heads": {}}, "nothing is computed"),
        ({"heads": {"a-b": {"path": "x"}}}, "letters, digits and underscores"),
        ({"heads": {"caption": {"path": "x"}}}, "another column `caption`"),
        ({"heads": {"aesthetic": {"path": "missing.safetensors"}}}, "missing.safetensors"),
        ({"heads": {"a": {"path": "AESTHETIC", "class": 1}}}, "`class` = 1, but it has 1 outputs"),
    ],
)
def test_wrong_settings_are_refused_by_name(folder, change, message):
    wrong = settings(folder, "refused")
    change = json.loads(json.dumps(change).replace("AESTHETIC", str(folder / "aesthetic.safetensors")))
    wrong["score"].update(change)
    with pytest.raises(InputError, match=re.escape(message)):
        tidemill.preprocess(wrong)


def test_similar_images_are_removed_by_their_features(folder):
    """The rule of docs/filters.md, on features of transformers; and a re-run that computes nothing."""
    model = CLIPModel.from_pretrained(folder / "clip")
    processor = CLIPImageProcessorPil.from_pretrained(folder / "clip")
    tidemill.preprocess(settings(folder, "all", score={}))
    kept = {key: row for key, row in read_rows(folder / "all").items() if row["status"] == "kept"}
    images = {row["key"]: row["jpg"] for row in pq.read_table(folder / "pairs.parquet").to_pylist()}
    order = sorted(kept, key=lambda key: (-kept[key]["width"] * kept[key]["height"], kept[key]["sample_id"]))
    pixels = [Image.open(io.BytesIO(images[key])).convert("RGB") for key in order]
    with torch.no_grad():
        features = model.get_image_features(**processor(pixels, return_tensors="pt"))
    features = torch.nn.functional.normalize(getattr(features, "pooler_output", features)).half().float()
    cosines = features @ features.T
    # A bound in the widest gap among few pairs, so that rounding decides nothing.
    values = cosines[np.tril_indices(len(order), -1)].sort().values[-50:-15]
    gap = (values[1:] - values[:-1]).argmax()
    bound = ((values[gap] + values[gap + 1]) / 2).item()
    remaining, duplicates = [], {}
    for i in range(len(order)):
        first = next((j for j in remaining if cosines[i, j] >= bound), None)
        if first is None:
            remaining.append(i)
        else:
            duplicates[order[i]] = order[first]
    assert len(duplicates) > 5

    similar = {"dedup": {"similar": {"cosine": bound}}}
    counts = tidemill.preprocess(settings(folder, "similar", **similar))["rows"]
    rows = read_rows(folder / "similar")
    found = {key for key, row in rows.items() if row["reason"] == "duplicate.similar"}
    assert found == set(duplicates)
    assert counts["rejected"] == len(found) + 1
    [mask] = (folder / "similar" / "dataset" / "masks").iterdir()
    keys = {row["sample_id"]: key for key, row in rows.items()}
    listed = {keys[row["sample_id"]]: keys[row["duplicate_of"]] for row in pq.read_table(mask).to_pylist()}
    assert listed == duplicates
    again = tidemill.preprocess(settings(folder, "similar", dedup={"similar": {"cosine": 1.0}}))
    # The units without duplicates are still there.
    assert again["this_run"] is None
    assert again["rows"]["kept"] == len(order)
