"""Preparing a row with other libraries: JPEG to a 256x256 center crop, caption to 77 ids."""

import functools
import io
import json
from pathlib import Path

import numpy as np
from PIL import Image

SIDE = 256
CONTEXT = 77


def center_square(width: int, height: int) -> tuple[int, int, int]:
    """Left edge, upper edge and side of the largest centered square."""
    side = min(width, height)
    return (width - side) // 2, (height - side) // 2, side


def decode_with_pillow(jpeg: bytes) -> np.ndarray:
    """The center crop as u8 [3, 256, 256], resized bicubically."""
    image = Image.open(io.BytesIO(jpeg)).convert("RGB")
    left, top, side = center_square(*image.size)
    box = (left, top, left + side, top + side)
    square = image.resize((SIDE, SIDE), Image.Resampling.BICUBIC, box=box)
    return np.ascontiguousarray(np.asarray(square).transpose(2, 0, 1))


@functools.cache
def clip_tokenizer(folder: Path):
    """transformers' CLIP tokenizer, one for each process. It is the `tokenizers` library inside."""
    from transformers import AddedToken, CLIPTokenizer

    # transformers 5 takes the vocabulary as a dict; given files, it silently makes an empty one.
    vocab = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    lines = (folder / "merges.txt").read_text(encoding="utf-8").splitlines()
    merges = [tuple(line.split(" ")) for line in lines if line and not line.startswith("#version")]
    start, end = (AddedToken(text, special=True) for text in ("<|startoftext|>", "<|endoftext|>"))
    # No padding token here: it would be special everywhere in a text, and Stable Diffusion 2 pads
    # with "!".
    tokenizer = CLIPTokenizer(
        vocab=vocab, merges=merges, bos_token=start, eos_token=end, unk_token=end, pad_token=end
    )
    if len(tokenizer) != len(vocab):
        raise ValueError(f"the tokenizer has {len(tokenizer)} tokens, its vocabulary {len(vocab)}")
    return tokenizer


def fast_clip_tokenizer(folder: Path):
    """The `tokenizers.Tokenizer` inside, set to 77 ids with the folder's padding."""
    tokenizer = clip_tokenizer(folder).backend_tokenizer
    pad = json.loads((folder / "special_tokens_map.json").read_text(encoding="utf-8"))["pad_token"]
    tokenizer.enable_truncation(CONTEXT)
    tokenizer.enable_padding(length=CONTEXT, pad_id=tokenizer.token_to_id(pad), pad_token=pad)
    return tokenizer
