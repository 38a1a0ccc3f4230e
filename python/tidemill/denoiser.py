"""A denoiser of the user's own in the place of the U-Net: what the trainer asks of a `torch.nn.Module`."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.parallel import DistributedDataParallel
from torch.utils.flop_counter import FlopCounterMode

from tidemill._native import InputError

# What `torch.compile` has wrapped, a whole module or a part of one, and its place in names.
COMPILED = "_orig_mod"


class Adapter:
    """A module that predicts noise or velocity: `module(sample, timesteps, text)`, as diffusers' U-Net does.

    `sample` [N, C, h, w] and `text` [N, L, D] come in the run's precision, `timesteps` [N] as int64. The
    prediction is a tensor like `sample`, or the field `sample` or the first element of what comes back.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        if not isinstance(module, torch.nn.Module):
            raise InputError(f"denoiser: a torch.nn.Module is needed, and this is a {type(module).__name__}")
        if isinstance(module, DistributedDataParallel):
            raise InputError(
                "denoiser: give the module within DistributedDataParallel (`.module`); reducing gradients is "
                "the trainer's part"
            )
        self._module = module
        # Compiling waits for the first step.
        self._plain: torch.nn.Module = getattr(module, COMPILED, module)
        self.name = type(self._plain).__qualname__
        kept = set(self._plain.state_dict())
        beside = sorted(kept - {name for name, _ in self._plain.named_parameters(remove_duplicate=False)})
        if beside:
            raise InputError(
                f"denoiser: {self.name} keeps {_some(beside)} beside its parameters, and checkpoints hold "
                "parameters only; register a buffer that never changes with persistent=False, and use no "
                "layer that keeps statistics (GroupNorm for BatchNorm)"
            )

    def prepare(self, device: str) -> None:
        """Moves the module to where it is trained, or says why it cannot be."""
        named = self.parameters()
        other = [
            f"{name} ({parameter.dtype})" for name, parameter in named if parameter.dtype != torch.float32
        ]
        if other:
            raise InputError(
                f"denoiser: {_some(other)} are not float32; give the module in float32, and say by "
                "train.precision what it computes in"
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
        # What a step of the caller's has left would count as part of the first gradients.
        self._module.zero_grad(set_to_none=True)

    def parameters(self) -> list[tuple[str, torch.nn.Parameter]]:
        """All of them, by the names that checkpoints have them under."""
        named = self._plain.named_parameters()
        return [(name.replace(f"{COMPILED}.", ""), parameter) for name, parameter in named]

    def frozen(self) -> set[str]:
        """The names of those that require no gradient."""
        return {name for name, parameter in self.parameters() if not parameter.requires_grad}

    def checkpoint_gradients(self) -> None:
        """Has it compute again in the backward pass what it has not kept, as diffusers' models can."""
        enable = getattr(self._plain, "enable_gradient_checkpointing", None)
        if enable is None:
            raise InputError(
                f"{self.name} has no enable_gradient_checkpointing(), by which diffusers' models take it up; "
                "use torch.utils.checkpoint within the module instead"
            )
        enable()

    def forward_flops(self, latents: Iterable[int], text: Iterable[int]) -> int:
        """Floating-point operations of a forward pass of one row, which it takes to see whether it can."""
        parameter = self.parameters()[0][1]
        sample, embedding = (parameter.new_zeros(1, *shape) for shape in (latents, text))
        timesteps = torch.zeros(1, dtype=torch.int64, device=parameter.device)
        row = f"a row of latents {list(latents)} and text {list(text)}"
        try:
            # PyTorch does not count what its attention on the CPU does in one operation.
            plain = sdpa_kernel(SDPBackend.MATH)
            with torch.no_grad(), plain, FlopCounterMode(display=False) as counter:
                prediction = _prediction(self._plain.eval()(sample, timesteps, embedding))
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            raise InputError(f"denoiser: {self.name} does not take {row}: {reason}") from error
        if not isinstance(prediction, torch.Tensor):
            raise InputError(
                f"denoiser: {self.name} gives a {type(prediction).__name__}, not a tensor, for {row}"
            )
        if prediction.shape != sample.shape:
            shape = list(prediction.shape[1:])
            raise InputError(f"denoiser: {self.name} predicts {shape} for {row}, and not as much as latents")
        return counter.get_total_flops()

    def __call__(self, sample: Any, timesteps: Any, text: Any) -> torch.Tensor:
        """The prediction for these DLPack capsules, as part of autograd's graph."""
        trains = torch.is_grad_enabled()
        if self._module.training != trains:
            self._module.train(trains)
        inputs = (torch.from_dlpack(capsule) for capsule in (sample, timesteps, text))
        return _prediction(self._module(*inputs))


def _prediction(output: Any) -> Any:
    if isinstance(output, torch.Tensor):
        return output
    return output[0] if isinstance(output, tuple) else getattr(output, "sample", output)


def _some(names: list[str]) -> str:
    """The first few of them."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
