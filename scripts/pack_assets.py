"""Copies assets/ for a wheel: pack_assets.py PAIRS TO.

Embeddings of words that no scene's caption has become zeros. They are noise, which takes 6 MB of a wheel
because it does not compress. Scenes (PAIRS) are encoded as before.
"""

import shutil
import sys
from pathlib import Path

import pyarrow.dataset
from safetensors.torch import load_file, save_file
from transformers import CLIPTokenizer

ASSETS = Path(__file__).resolve().parent.parent / "assets"
EMBEDDING = "text_model.embeddings.token_embedding.weight"


def main(pairs: str, to: Path) -> None:
    shutil.copytree(ASSETS, to)
    files = [str(path) for path in Path(pairs).glob("*.parquet")]
    captions = pyarrow.dataset.dataset(files).to_table(["caption"])["caption"].to_pylist()
    tokenizer = CLIPTokenizer.from_pretrained(ASSETS / "tokenizer")
    words = sorted({word for caption in captions if caption for word in tokenizer(caption)["input_ids"]})
    # The empty caption, and padding.
    words += tokenizer("", padding="max_length")["input_ids"]
    file = to / "text_encoder/model.safetensors"
    weights = load_file(file)
    kept = weights[EMBEDDING][words]
    weights[EMBEDDING].zero_()
    weights[EMBEDDING][words] = kept
    save_file(weights, file, metadata={"format": "pt"})


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
