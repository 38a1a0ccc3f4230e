"""The ids of captions by Hugging Face's `tokenizers`, with the pipeline of transformers' CLIPTokenizer."""

import json
import sys
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, processors

BEGIN, END = "<|startoftext|>", "<|endoftext|>"
# CLIP's expression for words, from its `simple_tokenizer.py`.
WORDS = r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"


def read_tokenizer(folder: Path, normalized: bool) -> Tokenizer:
    """The tokenizer of a folder; `normalized` is that flag of its special tokens."""
    vocab = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    lines = (folder / "merges.txt").read_text(encoding="utf-8").split("\n")[1:]
    merges = [tuple(line.split(" ")) for line in lines if line]
    tokenizer = Tokenizer(models.BPE(vocab, merges, unk_token=END, end_of_word_suffix="</w>"))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORDS), behavior="removed", invert=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=normalized) for token in (BEGIN, END)]
    )
    tokenizer.post_processor = processors.RobertaProcessing(
        (END, vocab[END]), (BEGIN, vocab[BEGIN]), trim_offsets=False, add_prefix_space=False
    )
    tokenizer.enable_truncation(77)
    tokenizer.enable_padding(length=77, pad_id=0)
    return tokenizer


def main(tokenizer_folder: Path, folder: Path) -> None:
    """Reads `captions.json`; writes the ids as `plain.json` and `normalized.json`."""
    captions = json.loads((folder / "captions.json").read_text(encoding="utf-8"))
    for normalized, name in ((False, "plain"), (True, "normalized")):
        encoded = read_tokenizer(tokenizer_folder, normalized).encode_batch_fast(captions)
        (folder / f"{name}.json").write_text(json.dumps([encoding.ids for encoding in encoded]))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
