"""Model folders as old and new versions of the libraries write them."""

import json
import shutil

import networks
import torch
from diffusers import AutoencoderKL, DDIMScheduler
from safetensors.torch import load_file, save_file

WEIGHTS = "diffusion_pytorch_model.safetensors"
DEPRECATED = {"to_q": "query", "to_k": "key", "to_v": "value", "to_out.0": "proj_attn"}


def variants(rng, out):
    """Writes `<network>/plain`, the reference, and folders beside it with the same weights."""
    unet = networks.make_unet(rng, 2, out / "unet" / "plain")
    unet.save_pretrained(out / "unet" / "sharded", max_shard_size="40KB")
    # A file of an earlier save beside the shards. diffusers ignores it.
    shutil.copytree(out / "unet" / "sharded", out / "unet" / "left-over")
    zeros = {name: torch.zeros_like(tensor) for name, tensor in unet.state_dict().items()}
    save_file(zeros, out / "unet" / "left-over" / WEIGHTS)
    assert_same(type(unet).from_pretrained(out / "unet" / "left-over").state_dict(), unet.state_dict())
    # A folder with files of the fp16 variant only.
    half = unet.to(torch.float16)
    half.save_pretrained(out / "unet" / "fp16", variant="fp16")
    half.save_pretrained(out / "unet" / "fp16-sharded", variant="fp16", max_shard_size="40KB")
    networks.make_vae(rng, 1, out / "vae" / "plain")
    plain = out / "vae" / "plain"
    weights = load_file(plain / WEIGHTS)
    old = {rename(name): tensor for name, tensor in weights.items()}
    rewrite(plain, out / "vae" / "deprecated", WEIGHTS, old)
    conv = {name: as_convolution(name, tensor) for name, tensor in old.items()}
    rewrite(plain, out / "vae" / "convolutions", WEIGHTS, conv)
    # diffusers itself must read the deprecated names.
    assert_same(AutoencoderKL.from_pretrained(out / "vae" / "deprecated").state_dict(), weights)
    text_variants(rng, out / "text")


def text_variants(rng, out):
    model = networks.make_text_encoder(rng, 0, out / "plain")
    model.save_pretrained(out / "sharded", max_shard_size="8KB")
    weights = {name.removeprefix("text_model."): tensor for name, tensor in model.state_dict().items()}
    prefixed = {f"text_model.{name}": tensor for name, tensor in weights.items()}
    ids = {"text_model.embeddings.position_ids": torch.arange(model.config.max_position_embeddings)[None]}
    rewrite(out / "plain", out / "bare", "model.safetensors", weights)
    rewrite(out / "plain", out / "prefixed", "model.safetensors", prefixed)
    rewrite(out / "plain", out / "position-ids", "model.safetensors", prefixed | ids)


def rename(name):
    if ".attentions." not in name:
        return name
    for new, old in DEPRECATED.items():
        name = name.replace(f".{new}.", f".{old}.")
    return name


def as_convolution(name, tensor):
    old = any(f".{old}.weight" in name for old in DEPRECATED.values())
    return tensor[..., None, None].contiguous() if old else tensor


def rewrite(source, to, file, tensors):
    to.mkdir(parents=True)
    shutil.copy(source / "config.json", to)
    save_file(tensors, to / file, metadata={"format": "pt"})


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name


def pipeline(rng, out):
    """Writes a tiny pipeline whose parts fit each other."""
    unet = networks.make_unet(rng, 1, out / "unet")
    networks.make_vae(rng, 0, out / "vae")
    networks.make_text_encoder(rng, 1, out / "text_encoder", width=unet.config.cross_attention_dim)
    DDIMScheduler(
        beta_schedule="scaled_linear", clip_sample=False, set_alpha_to_one=False, steps_offset=1
    ).save_pretrained(out / "scheduler")
    tokenizer = out / "tokenizer"
    tokenizer.mkdir()
    words = ["a", "b", "a</w>", "b</w>", "ab</w>", "<|startoftext|>", "<|endoftext|>"]
    (tokenizer / "vocab.json").write_text(json.dumps({word: index for index, word in enumerate(words)}))
    (tokenizer / "merges.txt").write_text("#version: 0.2\na b</w>\n")
    (tokenizer / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "CLIPTokenizer"}))
