"""CLIP's vocabulary from open_clip, thousands of unusual captions, and their ids by transformers."""

import gzip
import json
import random
import sys
import unicodedata
from pathlib import Path

import open_clip
from tokenizers import AddedToken
from transformers import CLIPTokenizer

CAPTIONS = 2500
WORDS = (Path(__file__).parent / "words.txt").read_text(encoding="utf-8").split()
SPACES = [" ", " ", " ", " ", "  ", "\t", "\n", "\r\n", "\u00a0", "\u3000", "\u2003", "\u200b", "\u2028", ""]
ODD = [
    "\x00",
    "\x01",
    "\x07",
    "\x1b",
    "\x7f",
    "\x85",
    "\u200d",
    "\u2060",
    "\ufeff",
    "\ufffd",
    "\u0301",
    "\u202e",
]


def caption(rng: random.Random) -> str:
    length = rng.choice([0, 1, 2, 5, 5, 10, 10, 20, 40, 120, 400])
    parts = []
    for _ in range(length):
        kind = rng.random()
        if kind < 0.80:
            word = rng.choice(WORDS)
            parts.append(rng.choice([word, word, word.upper(), word.title()]))
        elif kind < 0.88:
            parts.append("".join(chr(rng.randrange(0x20, 0x250)) for _ in range(rng.randrange(1, 12))))
        elif kind < 0.94:
            points = (rng.randrange(0x20, 0x1FFFF) for _ in range(rng.randrange(1, 6)))
            parts.append("".join(chr(p) for p in points if not 0xD800 <= p < 0xE000))
        else:
            parts.append(rng.choice(ODD))
        parts.append(rng.choice(SPACES))
    text = "".join(parts)
    form = rng.choice([None, None, "NFC", "NFD", "NFKC", "NFKD"])
    return unicodedata.normalize(form, text) if form else text


def vocabulary() -> tuple[dict[str, int], list[tuple[str, str]]]:
    """As open_clip's `SimpleTokenizer` numbers it."""
    from open_clip.tokenizer import bytes_to_unicode

    path = Path(open_clip.__file__).parent / "bpe_simple_vocab_16e6.txt.gz"
    lines = gzip.decompress(path.read_bytes()).decode().split("\n")[1 : 49152 - 256 - 2 + 1]
    merges = [tuple(line.split()) for line in lines]
    words = list(bytes_to_unicode().values())
    words += [word + "</w>" for word in words] + ["".join(pair) for pair in merges]
    words += ["<|startoftext|>", "<|endoftext|>"]
    return {word: number for number, word in enumerate(words)}, merges


def main(seed: int, folder: Path) -> None:
    rng = random.Random(seed)
    vocab, merges = vocabulary()
    captions = [caption(rng) for _ in range(CAPTIONS)] + ["", " ", "!", "a !", "hello! world !!"]
    (folder / "captions.json").write_text(json.dumps(captions))
    for normalized in [False, True]:
        ends = {
            name: AddedToken(text, special=True, normalized=normalized)
            for name, text in [("bos_token", "<|startoftext|>"), ("eos_token", "<|endoftext|>")]
        }
        # These name the end of text too, and the last one to be registered would win.
        same = {"unk_token": ends["eos_token"], "pad_token": ends["eos_token"]}
        tokenizer = CLIPTokenizer(vocab=vocab, merges=merges, **ends, **same)
        # A tokenizer that did not take the vocabulary gives ids all the same.
        assert tokenizer.vocab_size == len(tokenizer) == 49408
        assert tokenizer("a photo")["input_ids"] == [49406, 320, 1125, 49407]
        ids = tokenizer(captions, truncation=True, max_length=77)["input_ids"]
        # Stable Diffusion 2: id 0 pads, and "!" is an ordinary word.
        ids = [row + [0] * (77 - len(row)) for row in ids]

        out = folder / ("normalized" if normalized else "plain")
        out.mkdir()
        (out / "ids.json").write_text(json.dumps(ids))
        (out / "vocab.json").write_text(json.dumps(vocab))
        (out / "merges.txt").write_text(
            "#version: 0.2\n" + "\n".join(" ".join(pair) for pair in merges) + "\n"
        )
        tokens = {
            name: {"__type": "AddedToken", "content": str(token), "normalized": normalized}
            if normalized
            else str(token)
            for name, token in ends.items()
        }
        config = {
            "tokenizer_class": "CLIPTokenizer",
            "model_max_length": 77,
            "pad_token": "<|endoftext|>",
            **tokens,
        }
        (out / "tokenizer_config.json").write_text(json.dumps(config))
        (out / "special_tokens_map.json").write_text(json.dumps({"pad_token": "!"}))


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
