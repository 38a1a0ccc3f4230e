"""The tokenizer benchmark's peers in Python: for each line of standard input each one's seconds, as JSON."""

import json
import os
import sys
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"

from transformers import CLIPTokenizer


def main(folder: str, captions: str) -> None:
    with open(captions, encoding="utf-8") as file:
        captions = json.load(file)
    with open(f"{folder}/vocab.json", encoding="utf-8") as file:
        vocab = json.load(file)
    with open(f"{folder}/merges.txt", encoding="utf-8") as file:
        merges = [tuple(line.split(" ")) for line in file.read().split("\n")[1:] if line]
    tokenizer = CLIPTokenizer(vocab=vocab, merges=merges)
    assert tokenizer.vocab_size == len(vocab)
    backend = tokenizer.backend_tokenizer
    backend.enable_truncation(77)

    def transformers() -> None:
        tokenizer(captions, truncation=True, max_length=77)

    def tokenizers() -> None:
        backend.encode_batch_fast(captions)

    for _ in sys.stdin:
        seconds = {}
        for work in [transformers, tokenizers]:
            start = time.perf_counter()
            work()
            seconds[work.__name__] = time.perf_counter() - start
        print(json.dumps(seconds), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
