"""Downloads and uploads models of the Hugging Face Hub, with the user's own huggingface_hub.

`call_script.py` runs this file. It imports nothing of the package, because that would load PyTorch.
"""

from pathlib import Path

NETWORKS = ("vae", "text_encoder", "text_encoder_2", "text_encoder_3", "unet", "transformer")
# The parts of a model folder. Other files of a repository may be many times as large.
PARTS = [
    *(f"{part}/*.{kind}" for part in NETWORKS for kind in ("json", "safetensors")),
    "tokenizer/*",
    "tokenizer_2/*",
    "tokenizer_3/*",
    "scheduler/*.json",
    "model_index.json",
]
NOT_NEEDED = ["*.non_ema.*", "*.fp16.*"]


def download(repository: str, revision: str | None = None) -> str:
    """The local folder of a model; files in the cache are not downloaded again."""
    from huggingface_hub import snapshot_download

    arguments = {"revision": revision, "allow_patterns": PARTS}
    folder = snapshot_download(repository, **arguments, ignore_patterns=NOT_NEEDED)
    if not any(Path(folder).glob("vae/*.safetensors")):
        # A repository with nothing but half precision.
        folder = snapshot_download(repository, **arguments, ignore_patterns=NOT_NEEDED[:1])
    return folder


def upload(repository: str, folder: str, revision: str | None = None) -> str:
    """Uploads a model; returns the address of its page."""
    from huggingface_hub import HfApi

    api = HfApi()
    name = api.create_repo(repository, exist_ok=True).repo_id
    commit = api.upload_folder(
        repo_id=name, folder_path=folder, revision=revision, commit_message="Upload a model of Tidemill"
    )
    return str(commit.repo_url)
