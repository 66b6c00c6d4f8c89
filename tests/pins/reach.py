"""The only module of the pins that imports private names, so that moved files require changes only here."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import typer

from chipwise import ArchSpec, Attention, ChipwiseError, Design, FeedForward, Layer, Phase, SearchSpace, Workload
from chipwise.cli.app import app
from chipwise.core.files import build
from chipwise.deploy.export import gguf, hf, onnx
from chipwise.design.fleet.agent_loop import AgentLoop
from chipwise.design.fleet.question import FleetQuestion, read_question
from chipwise.design.run.spec import RunSpec
from chipwise.design.run.start_spec import StartSpec
from chipwise.design.run.winner import read_winner
from chipwise.hardware.datasheet import DeviceProfile
from chipwise.model.arch.ends import Pooler, States, Tokens
from chipwise.model.arch.io import from_data, to_data
from chipwise.model.kinds.denoiser.denoiser import Denoiser
from chipwise.model.kinds.question.question import question_of
from chipwise.model.kinds.ranking.stem import RankingStem
from chipwise.model.space.space_spec import SpaceSpec
from chipwise.model.walk import module as modules
from chipwise.model.walk.weights import weight_shapes
from chipwise.predict.explain.cases import calibrated_case
from chipwise.training.trainers.jobs import JobsTrainer, run_job
from chipwise.training.trainers.protocol import Setup

__all__ = [
    "RankingStem",
    "app",
    "calibrated_case",
    "from_data",
    "read_question",
    "read_winner",
    "run_job",
    "to_data",
    "weight_shapes",
]

TESTING = "chipwise.api.testing"  # the package of the suites
FILES = {
    "run": RunSpec,
    "run from a model": StartSpec,
    "question": FleetQuestion,
    "agent's loop": AgentLoop,
    "device": DeviceProfile,
    "model": ArchSpec,
}  # what people write in YAML, and the class that it is read as
Weights = dict[str, np.ndarray]


def command_line() -> Any:
    """The commands, as click knows them."""
    return typer.main.get_command(app)


def space_of(fields: Mapping[str, Any]) -> SearchSpace:
    """The search space that the ``space`` part of a run file describes."""
    return SearchSpace(build(SpaceSpec, dict(fields)))


def operators(design: Design, workload: Workload, phase: Phase) -> list[tuple[str, str, Any]]:
    """Place, kind and fields of each operator of one pass."""
    from chipwise import lower

    return [(placed.place, type(placed.op).__name__, placed.op) for placed in lower(design, workload, phase)]


def module(arch: ArchSpec, weights: Weights) -> torch.nn.Module:
    """The torch module of ``arch`` with ``weights``."""
    return modules.load(arch, weights)  # type: ignore[no-any-return]


def fresh(arch: ArchSpec, *, seed: int) -> torch.nn.Module | None:
    """A module with initial weights; None for text encoders, which are not trained from scratch."""
    return None if arch.norm_place == "post" else modules.build(arch, seed=seed)  # type: ignore[no-any-return]


def inputs(arch: ArchSpec, generator: np.random.Generator, *, batch: int = 2) -> list[torch.Tensor]:
    """Random inputs of the module of ``arch``."""
    stem = arch.stem
    if arch.reads_tokens:
        return [torch.from_numpy(generator.integers(0, arch.vocab_size, (batch, 7)))]
    if isinstance(stem, RankingStem):
        items = generator.integers(0, stem.items + 1, (batch, stem.tokens, 1))
        tags = generator.integers(0, stem.tags + 1, (batch, stem.tokens, stem.bag))
        return [torch.from_numpy(np.concatenate((items, tags), axis=2))]
    found = [torch.from_numpy(generator.standard_normal((batch, *stem.shape), dtype=np.float32))]
    if (asked := question_of(stem)) is not None:
        found.append(torch.from_numpy(generator.integers(0, asked.question.words, (batch, asked.question.tokens))))
    if isinstance(arch.head, Denoiser):
        times = torch.from_numpy(generator.random(batch, dtype=np.float32))
        found += [times, torch.arange(batch) % arch.head.labels]
    return found


def graph_of(design: Design, weights: Weights) -> Any:
    """The ONNX model of ``design``."""
    return onnx.build(design, weights)


def random_weights(arch: ArchSpec, *, seed: int) -> Weights:
    """Weights as measurements take them."""
    return onnx.random_weights(arch, seed=seed)


def read_jobs(folder: Path) -> Mapping[str, Any]:
    """Result of job ``a`` in a folder of jobs, as a search reads it."""
    from chipwise.api.testing.trainer_suite import toy_job

    trainer = JobsTrainer(Setup(on="jobs", folder=folder, workers=1))
    (event,) = trainer.run([toy_job(folder, "a", formats=("int8",))])
    return event.data


def gguf_tensors(design: Design, weights: Weights) -> list[tuple[str, tuple[int, ...], str]] | str:
    """Name, shape and format of every tensor of a GGUF file, or that there is none."""
    try:
        blocks = gguf.layout(design.arch)
        return [(each.name, each.shape, each.stored) for each in gguf.tensors(design, weights, blocks)]
    except ChipwiseError as error:
        return type(error).__name__


def huggingface(arch: ArchSpec, weights: Weights) -> dict[str, bytes] | str:
    """The files of a Hugging Face folder, or that there is none."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            hf.save_pretrained(arch, weights, None, folder)
        except ChipwiseError as error:
            return type(error).__name__
        return {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir())}


def from_suites(kind: str, count: int) -> list[ArchSpec]:
    """``count`` small models that the conformance suites' strategies draw; used to make pins alone."""
    from hypothesis import strategies as st

    from support import archs, models

    if kind == "encoder":
        return [*_encoders(count)]
    one_axis = archs.image_archs().filter(lambda arch: arch.stem.axes == 1)
    two_axes = archs.image_archs().filter(lambda arch: arch.stem.axes == 2)
    drawn = {
        "text": st.one_of(models.arch_specs(), models.llama_like_specs()),
        "image": two_axes,
        "keyword": one_axis,
        "denoiser": archs.denoiser_archs(),
        "transcripts": archs.sound_archs(),
        "question": st.one_of(archs.question_archs(), archs.crossing_archs()),
        "ranking": archs.ranking_archs(),
    }[kind]
    found: dict[str, ArchSpec] = {}
    models.check_each(lambda arch: found.setdefault(arch.digest, arch) and None, drawn, examples=4 * count)
    return [*found.values()][-count:]  # the first ones are the smallest


def _encoders(count: int) -> Iterator[ArchSpec]:
    generator = np.random.default_rng(7)

    def one(values: Sequence[Any]) -> Any:
        return values[int(generator.integers(len(values)))]

    for number in range(count):
        heads = one((1, 2, 4))
        attention = Attention(
            heads=heads, kv_heads=heads, head_size=8, qkv_bias=True, out_bias=True, rope=False, causal=False
        )
        ffn = FeedForward(width=one((24, 40)), activation=one(("gelu", "relu", "silu")), gated=bool(number % 3 == 0))
        layer = Layer(attention=attention, ffn=replace(ffn, bias=True))
        yield ArchSpec(
            name=f"encoder-{number}",
            d_model=8 * heads if number % 2 else 24,
            layers=(layer, *(one((layer, replace(layer, ffn=None), replace(layer, attention=None))),) * (number % 3)),
            max_tokens=24,
            norm="layernorm",
            norm_bias=True,
            norm_place="post",
            positions="learned",
            final_norm=False,
            embedding_norm=bool(generator.integers(2)),
            head=one((States(), Pooler())),
            stem=Tokens(vocab_size=50, token_types=one((0, 2))),
        )
