"""Compares an exported file with torch on the same inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from chipwise.core import units
from chipwise.core.arrays import AnyArray
from chipwise.core.record import Record
from chipwise.deploy.export.converted import TITLES
from chipwise.deploy.export.gguf_read import read
from chipwise.deploy.export.hf import modelling_of
from chipwise.deploy.runtimes import RUNTIMES, Session, llama_server
from chipwise.errors import SpecError, Unsupported, line_of
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.design import Design
from chipwise.model.kinds.table import form_of
from chipwise.model.walk.module import load

if TYPE_CHECKING:
    from torch import Tensor

Weights = Mapping[str, AnyArray]
NAMES = {"onnxruntime": "ONNX Runtime", "openvino": "OpenVINO", **TITLES}
ORIGINAL, STORED = "the original weights", "the weights as stored"
PROMPT, STEPS = 16, 32  # tokens of a compared prompt, and the decode steps after it
FEW_STEPS = 3  # decode steps if one reply of llama.cpp's server takes seconds
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
    decode_steps: int | None = None  # steps after a prompt, each one call of the runtime; None if one pass is compared
    perplexity_change: float | None = None  # relative change over the text that the steps read

    def text(self) -> str:
        """One sentence with the differences."""
        share = None if self.same_choice is None else units.show(self.same_choice, "share")
        same = "" if share is None else f"; the most likely token or class is the same in {share} of positions"
        who = f"{self.runtime} {self.version} against torch with {self.against}"
        return (
            f"{who}: {self.values:,} {self.outputs} differ by at most {self.greatest:.2g} and on average "
            f"by {self.mean:.2g}; the largest of torch's is {self.largest:.3g}{same}{self._steps()}"
        )

    def _steps(self) -> str:
        change = self.perplexity_change
        changed = "" if change is None else f"; perplexity changes by {100 * change:+.2g} %"
        return "" if self.decode_steps is None else f"; input: a prompt and {self.decode_steps} decode steps{changed}"


def stepped(found: AnyArray, wanted: AnyArray, ids: AnyArray, **told: str) -> Parity:
    """Compares two arrays of logits (steps + 1, vocab): after a prompt, and after each of the next tokens ``ids``."""
    steps = len(ids)
    rows, change = np.arange(steps), None
    if steps:
        losses = [(normalised(values)[rows, ids]).mean() for values in (wanted, found)]
        change = float(np.expm1(losses[0] - losses[1]))
    return replace(compared(found, wanted, outputs="logits", **told), decode_steps=steps, perplexity_change=change)


def normalised(logits: AnyArray) -> AnyArray:
    """Natural log probabilities, (…, vocab)."""
    shifted: AnyArray = logits.astype(np.float64) - logits.max(-1, keepdims=True)
    normalised: AnyArray = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return normalised


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
    """Encodes a short English text with a ``tokenizer.json``.

    Raises:
        SpecError: The file is not a tokenizer.
    """
    from tokenizers import Tokenizer

    try:
        return list(Tokenizer.from_file(str(tokenizer)).encode(TEXT, add_special_tokens=False).ids)
    except Exception as error:  # the package raises plain Exception
        raise SpecError(f"is not a tokenizer: {error}", file=str(tokenizer)) from None


def sample_inputs(arch: ArchSpec, tokens: Sequence[int] | None = None) -> tuple[AnyArray, ...]:
    """Inputs for a model's torch module: ``tokens`` of a text if it reads text, else random values."""
    if arch.vocab_size and (tokens or arch.causal):
        count = min(PROMPT + STEPS, arch.max_tokens)
        made = np.random.default_rng(0).integers(0, arch.vocab_size, count)
        return (np.array([tokens[:count] if tokens else made]),)
    return form_of(arch).inputs(arch, np.random.default_rng(0), 1)


def tensors(inputs: Sequence[AnyArray]) -> list[Tensor]:
    """Converts arrays to tensors."""
    import torch

    return [torch.from_numpy(each) for each in inputs]


def in_torch(arch: ArchSpec, weights: Weights, inputs: Sequence[AnyArray]) -> AnyArray:
    """Outputs of chipwise's torch module: a decoder's logits of every position, or another model's outputs."""
    import torch

    with torch.no_grad():
        found = load(arch, weights)(*tensors(inputs))
    return np.asarray((found[0] if isinstance(found, tuple) else found).numpy())


def answers(session: Session, inputs: Sequence[AnyArray], steps: int) -> AnyArray:
    """A decoder's logits after a prompt and after each of the last ``steps`` tokens, or another model's outputs.

    Logits are of shape (steps + 1, vocab).
    """
    if hasattr(session, "answer"):
        found: AnyArray = session.answer(*inputs)
        return found
    ids = inputs[0]
    prompt = ids.shape[1] - steps
    rows = [session.prefill(ids[:, :prompt])[0].copy()]
    rows += [session.decode(ids[:, place : place + 1])[0].copy() for place in range(prompt, ids.shape[1])]
    return np.stack(rows)


def transformers_answers(folder: Path, arch: ArchSpec, inputs: Sequence[AnyArray], steps: int) -> AnyArray:
    """Like :func:`answers`, but computed by transformers from a Hugging Face folder (with its modelling file if any).

    Raises:
        Unsupported: transformers lacks a package for this folder.
    """
    import torch
    import transformers

    named = [name for name in Record.read(folder / "config.json").record("auto_map") if name != "AutoConfig"]
    transformers.utils.logging.disable_progress_bar()
    auto = getattr(transformers, named[0] if named else modelling_of(arch).auto)
    try:
        model = auto.from_pretrained(folder, trust_remote_code=True, dtype=torch.float32).eval()
    except ImportError as error:
        raise Unsupported(f"transformers cannot load the folder here: {line_of(error)}") from None
    with torch.no_grad():
        if arch.causal and arch.head.writes:
            ids = torch.from_numpy(inputs[0])
            prompt, past, rows = len(ids[0]) - steps, None, []
            for part in (ids[:, :prompt], *(ids[:, place : place + 1] for place in range(prompt, len(ids[0])))):
                made = model(part, use_cache=True, past_key_values=past)
                past = made.past_key_values
                rows.append(made.logits[0, -1].numpy())
            return np.stack(rows)
        made = model(*tensors(inputs))
    names = ("logits", "last_hidden_state", "scores")
    found = made if isinstance(made, torch.Tensor) else next(getattr(made, name) for name in names if name in made)
    return np.asarray(found.numpy())


def transformers_parity(folder: Path, arch: ArchSpec, weights: Weights, tokens: Sequence[int] | None = None) -> Parity:
    """Compares a Hugging Face folder, loaded by transformers, with torch."""
    import transformers

    inputs = sample_inputs(arch, tokens)
    wanted, steps = in_torch(arch, weights, inputs), _steps_of(inputs)
    found = transformers_answers(folder, arch, inputs, steps)
    told = {"runtime": "transformers", "version": transformers.__version__, "against": ORIGINAL}
    if arch.causal and arch.head.writes:
        return stepped(found, wanted[0, -steps - 1 :], inputs[0][0, inputs[0].shape[1] - steps :], **told)
    return compared(found, wanted, outputs=form_of(arch).outputs, **told)


def _steps_of(inputs: Sequence[AnyArray]) -> int:
    """Returns how many of the given tokens (1, tokens) are decode steps of a comparison; the others are its prompt."""
    return min(STEPS, int(inputs[0].shape[1]) - 1)


def onnx_parity(
    path: Path, arch: ArchSpec, weights: Weights, tokens: Sequence[int] | None = None, *, runtime: str = "onnxruntime"
) -> Parity:
    """Runs a file on one thread in ONNX Runtime or another of ``RUNTIMES``; compares its outputs with torch's."""
    opener = RUNTIMES.load(runtime)()
    inputs, form = sample_inputs(arch, tokens), form_of(arch)
    wanted, length = in_torch(arch, weights, inputs), inputs[0].shape[1]
    session = opener.open(path, capacity=min(length, arch.max_tokens), batch=1, threads=1, options={})
    told = {"runtime": NAMES[runtime], "version": opener.version(), "against": ORIGINAL}
    steps, outputs = _steps_of(inputs), form.outputs
    found = answers(session, inputs, steps)
    if not hasattr(session, "answer"):
        return stepped(found, wanted[0, -steps - 1 :], inputs[0][0, length - steps :], **told)
    if form.gives == "mean":
        wanted, outputs = wanted.mean(1), "values of an embedding"
    return compared(found, wanted, outputs=outputs, **told)


def gguf_parity(path: Path, design: Design, weights: Weights) -> tuple[list[Parity], str]:
    """Runs a GGUF file with its tokenizer in llama.cpp: compares its outputs with torch's, and generates a text.

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
        most_tokens=min(PROMPT + STEPS, arch.max_tokens - 1),
        positions=1 + (FEW_STEPS if arch.vocab_size > LARGE_VOCABULARY else STEPS),
        new=min(WRITTEN, arch.max_tokens - 1),
    )
    tokens, places = np.array([reply["tokens"]]), reply["places"]
    found = np.array(reply["log_probabilities"], np.float32)
    checks = []
    for against, held in ((STORED, read(path)[1]), (ORIGINAL, weights)):
        wanted = normalised(in_torch(arch, held, (tokens,))[0, places])
        told = {"runtime": "llama.cpp (xllamacpp)", "version": version("xllamacpp"), "against": against}
        checks.append(stepped(found, wanted, tokens[0, places[0] + 1 :], **told))
    return checks, str(reply["text"])
