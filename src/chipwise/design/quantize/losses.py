"""Estimates how much each format in each matrix changes next-token distributions, by one forward and backward pass.

The loss of a format is the divergence (mean KL in nats) that it causes. For a small change of the model, the divergence
is half the mean square of the change in the log probability of a token that is sampled from the model. For a matrix
with inputs x and outputs y, it is estimated as half the mean, over positions, of the sum of two terms:

* summed over outputs: (gradient of y)² × (error of y due to rounded weights)², because rows have independent errors;
* summed over inputs: (gradient of x through this matrix)² × (error of x due to rounding to 8 bits)².

Losses of matrices add up as long as they are small; see ``benchmarks/gguf_mixes.py``.

References:
    The second-order form of the KL divergence: Kullback, Information Theory and Statistics, 1959, section 2.6.
    Sampling labels from the model for its Fisher information: Kunstner et al. 2019, arXiv:1905.12558.

Axes: B windows, T tokens, N = B T positions, R rows of a matrix, K its width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from chipwise.core.arrays import Float32Array
from chipwise.core.files import storage, write_json
from chipwise.core.record import Record
from chipwise.deploy.runtimes.ggml import TYPES, Rounding, ggml
from chipwise.design.quantize.decoder import StreamedDecoder, rounded
from chipwise.errors import MeasurementError, StudyError

OnProgress = Callable[[str, int, int], None]
Losses = dict[str, dict[str, float]]  # nats per token by matrix and format
ROWS, HEAD_ROWS = 128, 4096  # rows of a matrix (of the head) that are packed to estimate its loss
_POSITIONS = 1024  # most positions from which errors of outputs are computed
_CHUNK = 256  # positions whose logits are in memory at once


@dataclass(frozen=True, slots=True, kw_only=True)
class Sensitivity:
    """Result of the two passes: the loss of each format in each matrix, and the importance of each matrix's inputs."""

    importance: Mapping[str, Float32Array]  # by matrix: mean square of each of its inputs (K,)
    losses: Losses


def offered(width: int, formats: Sequence[str]) -> list[str]:
    """The formats that can store rows of ``width`` values."""
    return [name for name in formats if TYPES[name].fits(width)]


class Passes:
    """Computes losses and importance of all matrices on calibration text, tokens (B, T).

    Results of finished layers are stored in the folder ``state``; a stopped run continues after these layers.
    """

    def __init__(
        self,
        decoder: StreamedDecoder,
        tokens: npt.NDArray[np.int64],
        formats: Sequence[str],
        state: Path,
        *,
        seed: int,
        on_progress: OnProgress,
    ) -> None:
        self.decoder, self.formats, self.state, self.on_progress = decoder, formats, state, on_progress
        self.tokens = torch.from_numpy(tokens.astype(np.int64))
        self.count = self.tokens.numel()
        self.seed = seed
        self.layers = len(decoder.blocks)

    @torch.no_grad()
    def run(self) -> Sensitivity:
        """Runs the forward and the backward pass, and returns their results.

        Raises:
            SpecError: A weight is not finite.
            StorageError: The disk is full or the folder cannot be written.
        """
        self.state.mkdir(parents=True, exist_ok=True)
        if not self._path("begin").exists():
            self._forward()
        for number in reversed(range(self.layers)):
            if not self._path(f"layer-{number}").exists():
                self._layer(number)
            self.on_progress("scoring formats", self.layers - number, self.layers + 1)
        if not self._path("table").exists():
            self._table()
        self.on_progress("scoring formats", self.layers + 1, self.layers + 1)
        importance: dict[str, Float32Array] = {}
        losses: Losses = {}
        for place in (*(f"layer-{number}" for number in range(self.layers)), "begin", "table"):
            held = Record.read(self._path(place))
            for name in held:
                own, found = losses.setdefault(name, {}), held.record(name)
                scored = found.record("losses")
                for kind in scored:
                    own[kind] = own.get(kind, 0.0) + scored.get(kind, float)
                if squares := found.sequence("importance", float):
                    importance[name] = np.array(squares, np.float32)
        return Sensitivity(importance=importance, losses=losses)

    def _path(self, place: str) -> Path:
        return self.state / f"{place}.json"

    def _array(self, place: str) -> Path:
        return self.state / f"{place}.npy"

    def _keep(self, place: str, array: Tensor) -> None:
        path, part = self._array(place), self.state / f"{place}.part"
        with storage(path):
            with part.open("wb") as stream:
                np.save(stream, array.numpy())
            part.replace(path)

    def _load(self, place: str) -> Tensor:
        path = self._array(place)
        try:
            return torch.from_numpy(np.load(path))
        except (OSError, ValueError, EOFError):
            raise StudyError(f"{path}: missing or damaged; remove {self.state.parent} and start again") from None

    def _forward(self) -> None:
        """Forward pass: stores every layer's input, the head's losses, and the gradient of the last layer's output."""
        kept = [number for number in range(self.layers) if self._array(f"input-{number}").exists()]
        x_BTD = self._load(f"input-{kept[-1]}") if kept else self.decoder.embedded(self.tokens)
        for number in range(kept[-1] if kept else 0, self.layers):
            if number not in kept:
                self._keep(f"input-{number}", x_BTD)
            x_BTD = self.decoder.run(self.decoder.layer(number), number, x_BTD)
            self.on_progress("reading text", number + 1, self.layers)
        write_json(self._path("begin"), {self.decoder.head_name: self._head(x_BTD)})

    def _head(self, x_BTD: Tensor) -> dict[str, object]:
        """Losses of the head's formats, to second order: half the variance of the logits' errors under the model."""
        random = torch.Generator().manual_seed(self.seed)
        head_VK = self.decoder.head()
        with torch.enable_grad():
            x_BTD = x_BTD.detach().requires_grad_()
            h_NK = self.decoder.normed(x_BTD).flatten(0, 1)
        gradient_NK = torch.empty_like(h_NK)
        mean_V = torch.zeros(len(head_VK))
        sample = torch.arange(0, self.count, max(1, self.count // 512))
        shares = []
        for start in range(0, self.count, _CHUNK):
            p_NV = (h_NK[start : start + _CHUNK] @ head_VK.T).softmax(-1)
            mean_V += p_NV.sum(0) / self.count
            shares.append(p_NV[(sample[(sample >= start) & (sample < start + _CHUNK)] - start)])
            drawn_N = torch.multinomial(p_NV, 1, generator=random)
            p_NV.scatter_add_(1, drawn_N, torch.full_like(drawn_N, -1, dtype=p_NV.dtype))
            gradient_NK[start : start + _CHUNK] = p_NV @ head_VK
        with torch.enable_grad():
            (grad_BTD,) = torch.autograd.grad(h_NK, x_BTD, gradient_NK)
        self._keep("gradient", grad_BTD)
        p_SV, h_SK = torch.cat(shares), h_NK[sample]
        rows, scale_R = _drawn_rows(mean_V, HEAD_ROWS, self.seed)
        chosen_RK, p_SR = head_VK[rows], p_SV[:, rows]
        importance = h_NK.square().mean(0)
        kinds = offered(head_VK.shape[1], self.formats)
        by_rounding = {
            how: float(_variance((rounded(h_SK, how) - h_SK) @ head_VK.T, p_SV).mean() / 2)
            for how in _activation_roundings(kinds)
        }
        losses = {}
        for kind in kinds:
            error_SR = h_SK @ (_packed(chosen_RK, kind, importance) - chosen_RK).T
            own = float((p_SR * (1 - p_SR) * error_SR.square() * scale_R).sum(-1).mean() / 2)
            losses[kind] = own + by_rounding.get(TYPES[kind].activations, 0.0)
        return {"losses": losses, "importance": importance.tolist()}

    def _layer(self, number: int) -> None:
        """Backward pass of one layer: stores the losses of its matrices, and the gradient of its input."""
        module = self.decoder.layer(number)
        seen: dict[str, tuple[Tensor, Tensor]] = {}

        def watch(place: str) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
            def record(_module: nn.Module, given: tuple[Tensor, ...], out: Tensor) -> None:
                out.retain_grad()
                seen[place] = (given[0], out)

            return record

        places = self.decoder.matrix_places(number)
        for place in places:
            module.get_submodule(place).register_forward_hook(watch(place))
        with torch.enable_grad():
            x_BTD = self._load(f"input-{number}").requires_grad_()
            out_BTD = self.decoder.run(module, number, x_BTD)
            last = number == self.layers - 1
            above = "gradient" if last else f"gradient-{number + 1}"
            torch.autograd.backward(out_BTD, self._load(above))
        found = {}
        for place, name in places.items():
            given, out = seen[place]
            matrix = module.get_submodule(place).weight
            if out.grad is None or x_BTD.grad is None or not isinstance(matrix, Tensor):
                raise MeasurementError(f"no gradient reached the matrix {name}, so its loss cannot be computed")
            inputs, gradients = given.detach().flatten(0, 1), out.grad.flatten(0, 1)
            found[name] = self._matrix(matrix, inputs, gradients)
        if x_BTD.grad is not None:
            self._keep(f"gradient-{number}", x_BTD.grad)
        write_json(self._path(f"layer-{number}"), found)
        for used in (f"input-{number}", above):
            self._array(used).unlink()

    def _matrix(self, weight_RK: Tensor, x_NK: Tensor, g_NR: Tensor) -> dict[str, object]:
        importance = x_NK.square().mean(0)
        kinds = offered(weight_RK.shape[1], self.formats)
        rows, scale_R = _drawn_rows(g_NR.square().sum(0), ROWS, self.seed)
        chosen_RK = weight_RK[rows]
        step = max(1, len(x_NK) // _POSITIONS)
        x_SK, g_SR = x_NK[::step], g_NR[::step][:, rows].square() * scale_R
        through_NK = (g_NR @ weight_RK).square()
        by_rounding = {
            how: float((through_NK * (rounded(x_NK, how) - x_NK).square()).sum() / self.count / 2)
            for how in _activation_roundings(kinds)
        }
        losses = {}
        for kind in kinds:
            error_SR = x_SK @ (_packed(chosen_RK, kind, importance) - chosen_RK).T
            own = float((g_SR * error_SR.square()).sum() / len(x_SK) / 2)
            losses[kind] = own + by_rounding.get(TYPES[kind].activations, 0.0)
        return {"losses": losses, "importance": importance.tolist()}

    def _table(self) -> None:
        """Stores the losses of the token table, whose rows are looked up, not multiplied."""
        name = "token_embd.weight"
        gradient_NK = self._load("gradient-0").flatten(0, 1)
        ids, which_N = torch.unique(self.tokens, return_inverse=True)
        which_N = which_N.flatten()
        rows_RK = torch.from_numpy(self.decoder.matrix(name)[ids.numpy()])
        losses = {}
        for kind in offered(rows_RK.shape[1], self.formats):
            error_NK = (_packed(rows_RK, kind, None) - rows_RK)[which_N]
            losses[kind] = float((gradient_NK.square() * error_NK.square()).sum() / self.count / 2)
        write_json(self._path("table"), {name: {"losses": losses, "importance": []}})


def _drawn_rows(weight_R: Tensor, most: int, seed: int) -> tuple[Tensor, Tensor]:
    """Samples ``most`` rows nearly in proportion to ``weight_R``, or takes all rows if there are at most ``most``.

    Also returns a weight for each row. Sums over the sampled rows that use these weights are unbiased.
    """
    if len(weight_R) <= most:
        return torch.arange(len(weight_R)), torch.ones(len(weight_R))
    share = weight_R.double() + weight_R.double().mean() * 0.05 + 1e-300
    share /= share.sum()
    drawn = torch.multinomial(share, most, replacement=True, generator=torch.Generator().manual_seed(seed))
    rows, counts = torch.unique(drawn, return_counts=True)
    return rows, (counts / (most * share[rows])).float()


def _activation_roundings(kinds: Sequence[str]) -> list[Rounding]:
    return sorted({TYPES[kind].activations for kind in kinds} - {"none"})


def _variance(error_SV: Tensor, p_SV: Tensor) -> Tensor:
    return (p_SV * error_SV.square()).sum(-1) - (p_SV * error_SV).sum(-1).square()


def _packed(rows_RK: Tensor, kind: str, importance: Tensor | None) -> Tensor:
    weights = np.ones(rows_RK.shape[1], np.float32) if importance is None else importance.numpy()
    return torch.from_numpy(ggml().round_trip(rows_RK.numpy(), TYPES[kind], weights))
