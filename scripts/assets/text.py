"""Trains the text encoder.

Past the end of the caption every state encodes size, colour, shape and place. Each attribute has a
quarter of the hidden state to itself, where each of its values is a row of a Hadamard matrix. So
states have mean 0 and variance 1, as the final layer norm gives them, a linear map reads any
attribute, and a pair of values never trained on has just the state that its parts add up to.
"""

from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer

from . import data

HIDDEN = 64
QUARTER = HIDDEN // 4
LENGTH = 77
END_ID = 49407
BATCH = 96
LEARNING_RATE = 2e-3
WARMUP = 50
# Share of captions shortened to some of their attributes, or none: the encoder must not guess the
# rest.
PARTIAL = 0.15

CONFIG = {
    "vocab_size": 49408,
    "hidden_size": HIDDEN,
    "intermediate_size": 4 * HIDDEN,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": LENGTH,
    "hidden_act": "gelu",
    "projection_dim": HIDDEN,
    # The ids of stable-diffusion-2-base, which predate those of its vocabulary.
    "bos_token_id": 0,
    "eos_token_id": 2,
    "pad_token_id": 1,
}


def codes() -> list[torch.Tensor]:
    """For each attribute one row of +-1 per value, and a last one for a missing attribute.

    Each is f32 [values + 1, 16].
    """
    hadamard = torch.ones(1, 1)
    while len(hadamard) < QUARTER:
        hadamard = torch.kron(torch.tensor([[1.0, 1.0], [1.0, -1.0]]), hadamard)
    # The first row is all ones: its mean is not 0.
    rows = hadamard[1:]
    return [torch.cat([rows[: len(words)], rows[-1:]]) for words in data.ATTRIBUTES.values()]


def train(folder: Path, out: Path, steps: int, seed: int) -> None:
    tokenizer = CLIPTokenizer.from_pretrained(out / "tokenizer")
    # Some releases of transformers silently load a vocabulary of two tokens.
    assert len(tokenizer) == CONFIG["vocab_size"]
    assert tokenizer.pad_token_id == 0
    texts, classes = data.captions(folder)
    generator = torch.Generator().manual_seed(seed)
    texts, classes = shorten(texts, classes, generator)
    ids = tokenise(tokenizer, texts)
    target = torch.cat([code[classes[:, i]] for i, code in enumerate(codes())], dim=1)

    model = CLIPTextModel(CLIPTextConfig(**CONFIG))
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.98), weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, steps, pct_start=WARMUP / steps)
    for step in range(1, steps + 1):
        pick = torch.randint(len(ids), (BATCH,), generator=generator)
        states = model(ids[pick]).last_hidden_state
        is_after_end = after_end(ids[pick])
        loss = (states[is_after_end] - target[pick][:, None].expand_as(states)[is_after_end]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 100 == 0:
            print(f"text: step {step} loss {loss.item():.5f}", flush=True)
    save(model, out / "text_encoder")


def save(model: CLIPTextModel, folder: Path) -> None:
    """Saves in f16, under the names in Stable Diffusion's own folders.

    Releases of transformers write different names.
    """
    model.half().save_pretrained(folder)
    weights = {
        f"text_model.{name.removeprefix('text_model.')}": value for name, value in model.state_dict().items()
    }
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def shorten(
    texts: list[str], classes: torch.Tensor, generator: torch.Generator
) -> tuple[list[str], torch.Tensor]:
    """Replaces some captions by canonical ones that leave attributes out."""
    texts, classes = list(texts), classes.clone()
    for i in range(len(texts)):
        if torch.rand((), generator=generator) >= PARTIAL:
            continue
        kept = torch.rand(4, generator=generator) < 0.5
        size, colour, shape, place = (
            words[classes[i, a]] if kept[a] else "" for a, words in enumerate(data.ATTRIBUTES.values())
        )
        where = f"in the {place}" if place else ""
        texts[i] = " ".join(f"a {size} {colour} {shape} {where}".split()) if kept.any() else ""
        for a, words in enumerate(data.ATTRIBUTES.values()):
            if not kept[a]:
                classes[i, a] = len(words)
    return texts, classes


def tokenise(tokenizer: CLIPTokenizer, texts: list[str]) -> torch.Tensor:
    """i64 [N, 77], padded with id 0."""
    return tokenizer(
        texts, padding="max_length", truncation=True, max_length=LENGTH, return_tensors="pt"
    ).input_ids


def after_end(ids: torch.Tensor) -> torch.Tensor:
    """Which positions have seen the whole caption: bool, the shape of `ids`."""
    return (ids == END_ID).cumsum(1) > 0


def load(folder: Path) -> tuple[CLIPTextModel, CLIPTokenizer]:
    model = CLIPTextModel.from_pretrained(folder / "text_encoder", dtype=torch.float32).eval()
    return model, CLIPTokenizer.from_pretrained(folder / "tokenizer")


@torch.no_grad()
def encode(folder: Path, texts: list[str]) -> tuple[torch.Tensor, torch.Tensor]:
    """Last hidden states f32 [N, 77, 64], and the token ids."""
    model, tokenizer = load(folder)
    ids = tokenise(tokenizer, texts)
    return torch.cat([model(batch).last_hidden_state for batch in ids.split(256)]), ids
