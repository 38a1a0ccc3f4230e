"""Adapts the user's own denoiser, a `torch.nn.Module`, to the trainer."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.parallel import DistributedDataParallel
from torch.utils.flop_counter import FlopCounterMode

from tidemill._native import InputError

# The attribute under which `torch.compile` keeps the module that it wraps; it appears in parameter
# names.
COMPILED_MODULE = "_orig_mod"


class Adapter:
    """A module that predicts noise or velocity, like diffusers' U-Net.

    It is called as `module(sample, timesteps, text)`. `sample` [N, C, h, w] and `text` [N, L, D] have the
    run's precision, `timesteps` [N] is int64, or float32 where flow is predicted. With a dataset for SDXL
    there is diffusers' keyword `added_cond_kwargs`, too: `text_embeds` [N, P], the pooled text, and
    `time_ids` [N, 6], float32. The prediction is a tensor like `sample`: the module's output, its field
    `sample`, or its first element.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        if not isinstance(module, torch.nn.Module):
            raise InputError(f"denoiser: expected a torch.nn.Module, got a {type(module).__name__}")
        if isinstance(module, DistributedDataParallel):
            raise InputError(
                "denoiser: pass the module inside DistributedDataParallel (`.module`); the trainer "
                "reduces the gradients itself"
            )
        self._module = module
        # The module under `torch.compile`, so that checks do not compile it: that waits for the
        # first step.
        self._plain: torch.nn.Module = getattr(module, COMPILED_MODULE, module)
        self.name = type(self._plain).__qualname__
        state = set(self._plain.state_dict())
        buffers = sorted(state - {name for name, _ in self._plain.named_parameters(remove_duplicate=False)})
        if buffers:
            raise InputError(
                f"denoiser: {self.name} keeps {_list_names(buffers)} beside its parameters, and checkpoints "
                "hold parameters only; register constant buffers with persistent=False, and use no layer "
                "that keeps statistics (GroupNorm instead of BatchNorm)"
            )

    def prepare(self, device: str) -> None:
        """Moves the module to the device on which it is trained.

        Raises `InputError` if it cannot be trained.
        """
        named = self.parameters()
        not_f32 = [
            f"{name} ({parameter.dtype})" for name, parameter in named if parameter.dtype != torch.float32
        ]
        if not_f32:
            raise InputError(
                f"denoiser: {_list_names(not_f32)} are not float32; pass the module in float32 and set "
                "train.precision to the precision of its computation"
            )
        if len(self.frozen()) == len(named):
            raise InputError(f"denoiser: none of {self.name}'s {len(named)} parameters requires a gradient")
        try:
            inspect.signature(self._plain.forward).bind(*[None] * 3)
        except TypeError as error:
            raise InputError(
                f"denoiser: {self.name}.forward{inspect.signature(self._plain.forward)} cannot be called as "
                f"forward(sample, timesteps, text): {error}"
            ) from None
        self._module.to(device)
        # Gradients left by the caller would be added to the first step's.
        self._module.zero_grad(set_to_none=True)

    def parameters(self) -> list[tuple[str, torch.nn.Parameter]]:
        """All parameters with their names in checkpoints."""
        named = self._plain.named_parameters()
        return [(name.replace(f"{COMPILED_MODULE}.", ""), parameter) for name, parameter in named]

    def frozen(self) -> set[str]:
        """The names of the parameters that require no gradient."""
        return {name for name, parameter in self.parameters() if not parameter.requires_grad}

    def checkpoint_gradients(self) -> None:
        """Enables gradient checkpointing, by the method that diffusers' models have for it."""
        enable = getattr(self._plain, "enable_gradient_checkpointing", None)
        if enable is None:
            raise InputError(
                f"{self.name} has no method enable_gradient_checkpointing(), which diffusers' models have; "
                "use torch.utils.checkpoint inside the module instead"
            )
        enable()

    def forward_flops(
        self, latents: Iterable[int], text: Iterable[int], pooled: int | None, has_time_ids: bool
    ) -> int:
        """Floating-point operations of a forward pass of one row.

        It computes the pass, and raises `InputError` if the module fails or predicts another shape.
        """
        parameter = self.parameters()[0][1]
        sample, embedding = (parameter.new_zeros(1, *shape) for shape in (latents, text))
        timesteps = torch.zeros(1, dtype=torch.int64, device=parameter.device)
        added = _added_conditions(
            parameter.new_zeros(1, pooled) if pooled else None,
            parameter.new_zeros(1, 6) if has_time_ids else None,
        )
        row = f"a row of latents {list(latents)} and text {list(text)}"
        try:
            # FlopCounterMode does not count PyTorch's fused attention on the CPU.
            unfused_attention = sdpa_kernel(SDPBackend.MATH)
            with torch.no_grad(), unfused_attention, FlopCounterMode(display=False) as counter:
                prediction = _extract_prediction(self._plain.eval()(sample, timesteps, embedding, **added))
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            raise InputError(f"denoiser: {self.name} does not take {row}: {reason}") from error
        if not isinstance(prediction, torch.Tensor):
            raise InputError(
                f"denoiser: {self.name} returns a {type(prediction).__name__}, not a tensor, for {row}"
            )
        if prediction.shape != sample.shape:
            shape = list(prediction.shape[1:])
            raise InputError(
                f"denoiser: {self.name} predicts shape {shape} for {row}; the shape of the latents is needed"
            )
        return counter.get_total_flops()

    def __call__(
        self, sample: Any, timesteps: Any, text: Any, pooled: Any | None, time_ids: Any | None
    ) -> torch.Tensor:
        """The prediction for these DLPack capsules, as part of autograd's graph."""
        is_training = torch.is_grad_enabled()
        if self._module.training != is_training:
            self._module.train(is_training)
        inputs = (torch.from_dlpack(capsule) for capsule in (sample, timesteps, text))
        added = _added_conditions(
            *(None if capsule is None else torch.from_dlpack(capsule) for capsule in (pooled, time_ids))
        )
        return _extract_prediction(self._module(*inputs, **added))


def _added_conditions(pooled: torch.Tensor | None, time_ids: torch.Tensor | None) -> dict[str, Any]:
    """The keyword by which diffusers' U-Net takes pooled text and the sizes of image and crop."""
    given = {"text_embeds": pooled, "time_ids": time_ids}
    added = {name: tensor for name, tensor in given.items() if tensor is not None}
    return {"added_cond_kwargs": added} if added else {}


def _extract_prediction(output: Any) -> Any:
    if isinstance(output, torch.Tensor):
        return output
    return output[0] if isinstance(output, tuple) else getattr(output, "sample", output)


def _list_names(names: list[str]) -> str:
    """The first three names, and how many more there are."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
