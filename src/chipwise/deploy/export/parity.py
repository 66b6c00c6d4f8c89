"""Compares an exported file with torch on the same inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from chipwise.core import units
from chipwise.core.arrays import AnyArray
from chipwise.core.record import Record
from chipwise.deploy.export.gguf_read import read
from chipwise.deploy.export.hf import modelling_of
from chipwise.deploy.runtimes import llama_server
from chipwise.errors import ChipwiseError, SpecError, Unsupported
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.design import Design
from chipwise.model.kinds.form import MOST_TOKENS
from chipwise.model.kinds.table import form_of
from chipwise.model.walk.module import load

if TYPE_CHECKING:
    from torch import Tensor

Weights = Mapping[str, AnyArray]
ORIGINAL, STORED = "the original weights", "the weights as stored"
POSITIONS, FEW_POSITIONS = 8, 4  # positions whose logits are compared; fewer if one reply of the server takes seconds
LARGE_VOCABULARY = 20_000
TEXT = (
    "The old library stood at the corner of the market square. Every morning the librarian opened its heavy doors and "
    "lit the lamps, one after another, until the long room was warm and bright."
)
WRITTEN = 16  # tokens to generate, to check that text is produced


@dataclass(frozen=True, slots=True, kw_only=True)
class Parity:
    """Differences between a runtime's outputs and those of torch on the same inputs."""

    runtime: str
    version: str
    against: str  # the weights that torch uses
    outputs: str  # name of the compared outputs
    values: int
    greatest: float
    mean: float
    largest: float  # largest of torch's outputs, to judge the differences by
    same_choice: float | None = None  # share of positions with the same most probable token or class

    def text(self) -> str:
        """One sentence with the differences."""
        share = None if self.same_choice is None else units.show(self.same_choice, "share")
        same = "" if share is None else f"; the same first choice in {share}"
        who = f"{self.runtime} {self.version} against torch with {self.against}"
        return (
            f"{who}: {self.values:,} {self.outputs} differ by at most {self.greatest:.2g}, on average {self.mean:.2g}, "
            f"where the largest is {self.largest:.3g}{same}"
        )


def compared(found: AnyArray, wanted: AnyArray, *, runtime: str, version: str, against: str, outputs: str) -> Parity:
    """Differences between two arrays of outputs, (…, values) each."""
    difference = np.abs(found.astype(np.float64) - wanted)
    chooses = outputs == "logits" and wanted.shape[-1] > 1
    return Parity(
        runtime=runtime,
        version=version,
        against=against,
        outputs=outputs,
        values=int(wanted.size),
        greatest=float(difference.max()),
        mean=float(difference.mean()),
        largest=float(np.abs(wanted).max()),
        same_choice=float((found.argmax(-1) == wanted.argmax(-1)).mean()) if chooses else None,
    )


def tokens_of(tokenizer: Path) -> list[int]:
    """The tokens of a short English text under a ``tokenizer.json``.

    Raises:
        SpecError: It is not a tokenizer.
    """
    from tokenizers import Tokenizer

    try:
        return list(Tokenizer.from_file(str(tokenizer)).encode(TEXT, add_special_tokens=False).ids)
    except Exception as error:  # the package raises plain Exception
        raise SpecError(f"is not a tokenizer: {error}", file=str(tokenizer)) from None


def sample_inputs(arch: ArchSpec, tokens: Sequence[int] | None = None) -> tuple[AnyArray, ...]:
    """Inputs for a model's torch module: ``tokens`` of a text if it reads text, else random values."""
    if tokens and arch.vocab_size:
        return (np.array([tokens[: min(MOST_TOKENS, arch.max_tokens)]]),)
    return form_of(arch).inputs(arch, np.random.default_rng(0), 1)


def tensors(inputs: Sequence[AnyArray]) -> list[Tensor]:
    """Converts arrays to tensors."""
    import torch

    return [torch.from_numpy(each) for each in inputs]


def in_torch(arch: ArchSpec, weights: Weights, inputs: Sequence[AnyArray]) -> AnyArray:
    """Outputs of chipwise's torch module: logits of every position, or another kind's outputs."""
    import torch

    with torch.no_grad():
        found = load(arch, weights)(*tensors(inputs))
    return np.asarray((found[0] if isinstance(found, tuple) else found).numpy())


def transformers_parity(folder: Path, arch: ArchSpec, weights: Weights, tokens: Sequence[int] | None = None) -> Parity:
    """Compares a Hugging Face folder, loaded by transformers (with its own modelling file if any), with torch."""
    import torch
    import transformers

    named = [name for name in Record.read(folder / "config.json").record("auto_map") if name != "AutoConfig"]
    transformers.utils.logging.disable_progress_bar()
    auto = getattr(transformers, named[0] if named else modelling_of(arch).auto)
    try:
        model = auto.from_pretrained(folder, trust_remote_code=True, dtype=torch.float32).eval()
    except ImportError as error:
        raise Unsupported(f"transformers cannot load the folder here: {str(error).splitlines()[0]}") from None
    inputs = sample_inputs(arch, tokens)
    with torch.no_grad():
        made = model(*tensors(inputs))
    names = ("logits", "last_hidden_state", "scores")
    found = made if isinstance(made, torch.Tensor) else next(getattr(made, name) for name in names if name in made)
    told = {"runtime": "transformers", "version": transformers.__version__, "against": ORIGINAL}
    return compared(found.numpy(), in_torch(arch, weights, inputs), outputs=form_of(arch).outputs, **told)


def onnx_parity(path: Path, arch: ArchSpec, weights: Weights, tokens: Sequence[int] | None = None) -> Parity:
    """Compares an ONNX file, run by ONNX Runtime on one thread, with torch."""
    import onnxruntime

    from chipwise.deploy.runtimes.onnx_session import SinglePass
    from chipwise.deploy.runtimes.onnxruntime import OnnxRuntime

    inputs, form = sample_inputs(arch, tokens), form_of(arch)
    wanted, outputs, length = in_torch(arch, weights, inputs), form.outputs, inputs[0].shape[1]
    session = OnnxRuntime().open(path, capacity=min(length, arch.max_tokens), batch=1, threads=1, options={})
    if isinstance(session, SinglePass):
        found = session.answer(*inputs)
    else:
        places = llama_server.spread(length, POSITIONS)
        found = np.stack([session.prefill(inputs[0][:, : place + 1])[0].copy() for place in places])
        wanted = wanted[0, places]
    if form.gives == "mean":
        wanted, outputs = wanted.mean(1), "values of an embedding"
    told = {"runtime": "ONNX Runtime", "version": onnxruntime.__version__, "against": ORIGINAL}
    return compared(found, wanted, outputs=outputs, **told)


def gguf_parity(path: Path, design: Design, weights: Weights) -> tuple[list[Parity], str]:
    """Compares a GGUF file and its tokenizer, run by llama.cpp, with torch, and generates a text.

    Log probabilities are compared, because llama.cpp's server does not return logits. Keys and values are stored in
    FP32.

    Raises:
        MissingExtra: xllamacpp is not installed.
        WorkerError: llama.cpp ended its process.
        MeasurementError: llama.cpp cannot load the file.
    """
    from importlib.metadata import version

    arch = design.arch
    reply = llama_server.ask(
        path,
        vocab_size=arch.vocab_size,
        text=TEXT,
        most_tokens=min(MOST_TOKENS, arch.max_tokens),
        positions=FEW_POSITIONS if arch.vocab_size > LARGE_VOCABULARY else POSITIONS,
        new=min(WRITTEN, arch.max_tokens - 1),
    )
    tokens, places = sample_inputs(arch, reply["tokens"])[0], reply["places"]
    found = np.array(reply["log_probabilities"], np.float32)
    checks = []
    for against, held in ((STORED, read(path)[1]), (ORIGINAL, weights)):
        wanted = in_torch(arch, held, (tokens,))[0, places].astype(np.float64)
        top = wanted.max(-1, keepdims=True)
        shifted = wanted - top - np.log(np.exp(wanted - top).sum(-1, keepdims=True))
        told = {"runtime": "llama.cpp (xllamacpp)", "version": version("xllamacpp"), "against": against}
        checks.append(compared(found, shifted, outputs="logits", **told))
    return checks, str(reply["text"])


def reason(error: ChipwiseError) -> str:
    """Reason why a file was not compared, as half a sentence."""
    return str(error).partition("\n")[0]
