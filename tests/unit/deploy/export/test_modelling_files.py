"""The shipped modelling files: every field that a spec can hold is computed as chipwise's torch module computes it.

Models are drawn from the conformance suites, saved as Hugging Face folders and loaded by transformers' own classes.
"""

from __future__ import annotations

import importlib
import inspect
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from chipwise.deploy.export.hf import load_pretrained, modelling_of, save_pretrained
from chipwise.errors import ChipwiseError
from chipwise.model import kinds
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.ends import Classes, Pooler, States, Tokens
from chipwise.model.arch.feed_forward import FeedForward
from chipwise.model.arch.layer import Layer
from chipwise.model.arch.mixers import Attention, ConvModule
from chipwise.model.kinds.denoiser.denoiser import Denoiser
from chipwise.model.kinds.denoiser.form import DENOISER
from chipwise.model.kinds.encoder.form import ENCODER
from chipwise.model.kinds.encoder.module import Encoder
from chipwise.model.kinds.form import Form
from chipwise.model.kinds.image.form import CLASSIFIER
from chipwise.model.kinds.image.stem import ImageStem
from chipwise.model.kinds.question.projector.spec import Projector
from chipwise.model.kinds.question.question import Question, QuestionStem
from chipwise.model.kinds.ranking.form import RANKER
from chipwise.model.kinds.ranking.stem import RankingStem, Scores
from chipwise.model.kinds.sound.form import TRANSCRIBER, frame_conv
from chipwise.model.kinds.sound.stem import Ctc, SoundStem
from chipwise.model.kinds.table import form_of
from chipwise.model.kinds.text.form import DECODER
from chipwise.model.walk.built import require_built
from chipwise.model.walk.module import module_of
from support.archs import (
    crossing_archs,
    denoiser_archs,
    image_archs,
    question_archs,
    ranking_archs,
    sound_archs,
)
from support.block_suite import random_tokens, shake
from support.form_suite import inputs_of
from support.models import arch_specs

transformers = pytest.importorskip("transformers", reason="transformers comes with chipwise[search]")
TOLERANCE = 1e-4


@st.composite
def encoder_archs(draw: st.DrawFn) -> ArchSpec:
    """Small text encoders: every layer, table and head that is built."""
    bias, norm = draw(st.booleans()), draw(st.sampled_from(("layernorm", "rmsnorm")))
    layers = []
    for _ in range(draw(st.integers(1, 3))):
        heads = draw(st.sampled_from((1, 3)))
        attention = Attention(
            heads=heads, kv_heads=heads, head_size=8, qkv_bias=bias, out_bias=not bias, rope=False, causal=False
        )
        ffn = FeedForward(
            width=draw(st.sampled_from((8, 20))),
            activation=draw(st.sampled_from(("relu", "gelu", "gelu_tanh", "silu"))),
            gated=draw(st.booleans()),
            bias=draw(st.booleans()),
        )
        kept = draw(st.sampled_from(("both", "attention", "ffn")))
        layers.append(Layer(attention=attention if kept != "ffn" else None, ffn=ffn if kept != "attention" else None))
    return ArchSpec(
        d_model=16,
        layers=tuple(layers),
        max_tokens=24,
        norm=norm,
        norm_bias=norm == "layernorm" and draw(st.booleans()),
        positions="learned",
        norm_place="post",
        final_norm=False,
        embedding_norm=draw(st.booleans()),
        stem=Tokens(vocab_size=40, token_types=draw(st.sampled_from((0, 2)))),
        head=draw(st.sampled_from((Pooler(), States()))),
    )


@dataclass(frozen=True)
class Kind:
    archs: Callable[[], st.SearchStrategy[ArchSpec]]
    asked: Callable[[ArchSpec], dict[str, torch.Tensor]]  # inputs by the names that transformers calls them
    result: Callable[[Any], torch.Tensor] = lambda found: found.logits


def tokens_of(arch: ArchSpec) -> dict[str, torch.Tensor]:
    return {"input_ids": random_tokens(arch, length=min(9, arch.max_tokens), batch=2)}


def images_of(arch: ArchSpec) -> dict[str, torch.Tensor]:
    assert not arch.reads_tokens
    names = ("pixel_values" if arch.stem.axes == 2 else "input_values", "input_ids")
    return dict(zip(names, inputs_of(arch, batch=2), strict=False))


def told(arch: ArchSpec) -> dict[str, torch.Tensor]:
    return dict(zip(("image", "time", "label"), inputs_of(arch, batch=3), strict=True))


KINDS = {
    DECODER: Kind(arch_specs, tokens_of),
    ENCODER: Kind(
        encoder_archs,
        tokens_of,
        lambda found: found.last_hidden_state,
    ),
    CLASSIFIER: Kind(lambda: st.one_of(image_archs(), question_archs(), crossing_archs()), images_of),
    DENOISER: Kind(denoiser_archs, told, lambda found: found),
    TRANSCRIBER: Kind(sound_archs, lambda arch: {"input_features": inputs_of(arch, batch=2)[0]}),
    RANKER: Kind(ranking_archs, lambda arch: {"ids": inputs_of(arch, batch=2)[0]}, lambda found: found.scores),
}


def module(arch: ArchSpec) -> torch.nn.Module:
    """Chipwise's torch module with random weights, none of which is 1 or 0."""
    torch.manual_seed(0)
    made = module_of(arch)
    return shake(made, seed=1).eval()


def loaded(arch: ArchSpec, folder: Path, *, by_name: bool) -> torch.nn.Module:
    """The folder's model, found by transformers; or made by the modelling file itself, which is quicker."""
    config = json.loads((folder / "config.json").read_text())
    name = next((name for name in config.get("auto_map", {}) if name != "AutoConfig"), None)
    if by_name or name is None:
        auto = getattr(transformers, name or modelling_of(arch).auto)
        return auto.from_pretrained(folder, trust_remote_code=True).eval()
    file, kind = config["auto_map"][name].split(".")
    (path,) = Path(kinds.__file__).parent.rglob(f"{file}.py")
    shipped = importlib.import_module(f"{kinds.__name__}.{path.parent.name}.{file}")
    made = getattr(shipped, kind)(shipped.ChipwiseConfig(**config))
    left = made.load_state_dict(load_file(folder / "model.safetensors"), strict=False)
    assert not left.unexpected_keys
    made.tie_weights()
    return made.eval()


def check(arch: ArchSpec, folder: Path, *, by_name: bool = False) -> None:
    """Asserts that the folder of ``arch`` computes what the torch module computes."""
    kind, ours = KINDS[form_of(arch)], module(arch)
    inputs = kind.asked(arch)
    save_pretrained(arch, dict(ours.state_dict()), None, folder)
    theirs = loaded(arch, folder, by_name=by_name)
    with torch.no_grad():
        wanted, found = ours(*inputs.values()), kind.result(theirs(**inputs))
        wanted = wanted[0] if isinstance(wanted, tuple) else wanted
        torch.testing.assert_close(found, wanted, atol=TOLERANCE, rtol=TOLERANCE)
        if isinstance(ours, Encoder) and ours.pooler is not None:
            pooled = theirs(**inputs).pooler_output
            torch.testing.assert_close(pooled, ours.pooled(wanted), atol=TOLERANCE, rtol=TOLERANCE)


@pytest.mark.parametrize(("by_name", "examples"), [(True, 5), (False, 25)], ids=["by transformers", "by the file"])
@pytest.mark.parametrize("form", KINDS, ids=lambda form: form.name)
def test_folders_compute_what_torch_computes(form: Form, by_name: bool, examples: int, tmp_path_factory) -> None:
    folder = tmp_path_factory.mktemp("folder")

    @settings(max_examples=examples, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(arch=KINDS[form].archs())
    def each(arch: ArchSpec) -> None:
        check(arch, tmp_path_factory.mktemp("folder") if by_name else folder, by_name=by_name)

    each()


@pytest.mark.parametrize("name", ["decoder", "question", "denoiser"])
def test_a_folder_needs_its_own_files_alone(name: str, tmp_path) -> None:
    """Loaded from any path, its classes come from copies of its two files; saved again, both are there again."""
    arch = EXAMPLES[name]
    first, again = tmp_path / "a" / "folder", tmp_path / "b" / "other-name"
    save_pretrained(arch, dict(module(arch).state_dict()), None, first)
    auto = getattr(transformers, modelling_of(arch).auto)
    model = auto.from_pretrained(first, trust_remote_code=True).eval()
    files = {Path(inspect.getfile(type(part))) for part in model.modules() if "chipwise" in type(part).__module__}
    assert {file.name for file in files} == {modelling_of(arch).file, "chipwise_blocks.py"}
    assert not any(file.is_relative_to(Path(kinds.__file__).parent) for file in files)
    model.save_pretrained(again)
    assert {file.name for file in first.glob("*.py")} == {file.name for file in again.glob("*.py")}
    inputs = KINDS[form_of(arch)].asked(arch)
    with torch.no_grad():
        found = auto.from_pretrained(again, trust_remote_code=True).eval()(**inputs)
        torch.testing.assert_close(KINDS[form_of(arch)].result(found), KINDS[form_of(arch)].result(model(**inputs)))


def test_a_folder_of_one_modelling_file_is_loaded(tmp_path) -> None:
    """As they were written before files shared their blocks."""
    arch, ours = EXAMPLES["decoder"], module(EXAMPLES["decoder"])
    save_pretrained(arch, dict(ours.state_dict()), None, tmp_path)
    head, shared = tmp_path / "modeling_chipwise.py", tmp_path / "chipwise_blocks.py"
    before, _, after = head.read_text().partition("from .chipwise_blocks import (")
    own = shared.read_text().replace("from __future__ import annotations\n", "")
    head.write_text(before + own + after.partition(")")[2])
    shared.unlink()
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, trust_remote_code=True).eval()
    tokens = random_tokens(arch, length=9)
    with torch.no_grad():
        torch.testing.assert_close(theirs(tokens).logits, ours(tokens)[0], atol=TOLERANCE, rtol=TOLERANCE)
    read, weights = load_pretrained(tmp_path)
    assert read == arch
    assert weights.keys() == dict(ours.named_parameters()).keys()


def others(value: Any, hint: Any) -> list[Any]:
    """Other values that a field of this type may have."""
    if get_origin(hint) is Literal:
        return [other for other in get_args(hint) if other != value]
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [2 * value, 1, 2] if value else [1, 2, 8]
    if isinstance(value, float):
        return [2 * value, value / 4]
    if value is None and int in get_args(hint):
        return [1, 2, 3]
    return []


def changed(item: Any) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Copies of a spec in each of which one field, of it or of a part of it, has another value."""
    hints = get_type_hints(type(item))
    for field in fields(item):
        value = getattr(item, field.name)
        if is_dataclass(value):
            for place, make in changed(value):
                yield f"{field.name}.{place}", lambda make=make, name=field.name: replace(item, **{name: make()})
        elif isinstance(value, tuple) and value and is_dataclass(value[-1]):
            for place, make in changed(value[-1]):
                yield (
                    f"{field.name}.{place}",
                    lambda make=make, name=field.name, value=value: replace(item, **{name: (*value[:-1], make())}),
                )
        elif field.name != "name":
            for other in dict.fromkeys(others(value, hints[field.name])):
                yield (
                    f"{field.name}={other}",
                    lambda other=other, name=field.name: replace(item, **{name: other}),
                )


ATTENTION = Attention(heads=2, kv_heads=2, head_size=8, qkv_bias=True, out_bias=True, rope=False, causal=False)
FFN = FeedForward(width=24, activation="gelu", gated=False, bias=True)
GRID = ImageStem(image_size=16, patch=4, prefix_tokens=0, convs=(3,))
PAIR = (Layer(attention=ATTENTION, ffn=FFN),) * 2
BIASED = replace(ATTENTION, relative_buckets=49)
DECODER = ArchSpec(
    stem=Tokens(vocab_size=40),
    d_model=16,
    max_tokens=24,
    layers=(Layer(attention=Attention(heads=2, kv_heads=1, head_size=8), ffn=FFN, attention_conv=3, ffn_conv=2),) * 2,
)
CLASSIFIER = ArchSpec(
    stem=GRID,
    head=Classes(count=5, pooling="mean"),
    d_model=16,
    layers=PAIR,
    max_tokens=GRID.tokens,
    norm="layernorm",
    positions="learned",
)
QUESTION = replace(
    CLASSIFIER,
    layers=tuple(replace(layer, cross=ATTENTION) for layer in PAIR),
    stem=QuestionStem(
        image=replace(GRID, bias=False),
        projector=Projector(widths=(16, 16), join=2),
        question=Question(words=9, tokens=3),
    ),
    max_tokens=7,
    head=Classes(count=5, pooling="last"),
)
SOUND = SoundStem(seconds=0.24, rate=100.0, channels=5, convs=(frame_conv(16, 1), frame_conv(16, 2)))
HEARD = Layer(attention=replace(ATTENTION, chunk=3), ffn=FFN, conv=ConvModule(taps=5, norm="layer"))
HISTORY = Attention(
    heads=2, kv_heads=2, head_size=8, qkv_bias=True, out_bias=True, rope=False, relative_buckets=6, pointwise=True
)
EXAMPLES = {
    "decoder": DECODER,
    "decoder with learned positions": replace(
        DECODER, positions="learned", layers=(Layer(attention=replace(ATTENTION, causal=True), ffn=FFN),) * 2
    ),
    "encoder": replace(
        DECODER,
        layers=(PAIR[0], replace(PAIR[0], ffn=replace(FFN, width=40))),
        positions="learned",
        norm="layernorm",
        norm_place="post",
        final_norm=False,
        head=Pooler(),
    ),
    "classifier": CLASSIFIER,
    "biases": replace(CLASSIFIER, positions="none", layers=tuple(replace(layer, attention=BIASED) for layer in PAIR)),
    "signal": replace(CLASSIFIER, stem=replace(GRID, axes=1), max_tokens=4),
    "question": QUESTION,
    "denoiser": replace(
        CLASSIFIER,
        stem=replace(GRID, convs=()),
        head=Denoiser(labels=3, frequencies=6, steps=2),
        norm_weight=False,
    ),
    "transcriber": replace(CLASSIFIER, layers=(HEARD, HEARD), stem=SOUND, head=Ctc(count=5), max_tokens=SOUND.tokens),
    "ranker": replace(
        CLASSIFIER,
        layers=(Layer(attention=HISTORY, ffn=FFN),) * 2,
        stem=RankingStem(items=30, history=5, candidates=4, width=6, tags=7, bag=2, bias=True),
        head=Scores(),
        max_tokens=6,
        positions="none",
    ),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_field_with_another_value_is_computed_or_refused(name: str, tmp_path) -> None:
    """One field after the other: where chipwise builds the changed model, the folder computes it too."""
    built, wrong = 0, []
    check(EXAMPLES[name], tmp_path)
    for place, make in changed(EXAMPLES[name]):
        try:
            other = make()
            require_built(other, work="built")
            module(other)
        except (ChipwiseError, RuntimeError):
            continue  # no such model is built
        built += 1
        try:
            check(other, tmp_path)
        except (AssertionError, RuntimeError, ValueError, TypeError, KeyError) as error:
            wrong.append(f"{place}: {str(error)[:200]}")
    assert not wrong, "\n".join(wrong)
    assert built > 8
