"""Small models of every kind other than text, covering all choices of blocks, for ``FormSuite``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from hypothesis import strategies as st

from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.ends import Classes
from chipwise.model.arch.feed_forward import FeedForward
from chipwise.model.arch.layer import Layer
from chipwise.model.arch.mixers import Attention, ConvModule
from chipwise.model.arch.trunk import NormKind
from chipwise.model.kinds.denoiser.denoiser import Denoiser
from chipwise.model.kinds.image.distances.spec import bias_rows
from chipwise.model.kinds.image.stem import ImageStem
from chipwise.model.kinds.question.projector.spec import Projector
from chipwise.model.kinds.question.question import Question, QuestionStem
from chipwise.model.kinds.ranking.stem import RankingStem, Scores, Similarity
from chipwise.model.kinds.sentence.choices import SentenceSpace
from chipwise.model.kinds.sound.form import frame_conv
from chipwise.model.kinds.sound.stem import Ctc, SoundStem
from chipwise.model.space.search_space import SearchSpace
from chipwise.model.space.space_spec import LayerSpace, SpaceSpec

ITEMS, TAGS = 30, 7  # rows of the tables of ranking models
FRAMES, BANDS = 24, 5  # sizes of spectrograms


def _layer(draw: st.DrawFn, attention: Attention, *, whole: bool = False) -> Layer:
    """A layer of this attention and a feed-forward, one of which may be missing unless it is ``whole``."""
    ffn = FeedForward(
        width=draw(st.sampled_from((8, 20))),
        activation=draw(st.sampled_from(("relu", "gelu", "gelu_tanh", "silu"))),
        gated=draw(st.booleans()),
        bias=attention.out_bias,
    )
    kept = "both" if whole else draw(st.sampled_from(("both", "both", "attention", "ffn")))
    return Layer(attention=attention if kept != "ffn" else None, ffn=ffn if kept != "attention" else None)


@st.composite
def image_archs(draw: st.DrawFn) -> ArchSpec:
    """Small classifiers of 16 x 16 pixels or 16 frames: every stem, pooling and feed-forward that is built."""
    patch = draw(st.sampled_from((2, 4, 8)))
    convs = tuple(draw(st.lists(st.sampled_from((3, 5)), max_size={2: 1, 4: 2, 8: 2}[patch])))
    pooling: Literal["first", "mean"] = draw(st.sampled_from(("first", "mean")))
    first = pooling == "first" or draw(st.booleans())
    stem = ImageStem(
        axes=draw(st.sampled_from((1, 2))),
        image_size=16,
        patch=patch,
        channels=draw(st.sampled_from((1, 3))),
        convs=convs,
        bias=draw(st.booleans()),
        prefix_tokens=int(first),
    )
    bias, positions = draw(st.booleans()), draw(st.sampled_from(("learned", "biases", "none")))
    layers = []
    for _ in range(draw(st.integers(1, 3))):
        attention = Attention(
            heads=(heads := draw(st.sampled_from((1, 2)))),
            kv_heads=heads,
            head_size=8,
            qkv_bias=bias,
            out_bias=bias,
            rope=False,
            causal=False,
            relative_buckets=bias_rows(stem) if positions == "biases" and draw(st.booleans()) else 0,
        )
        layers.append(_layer(draw, attention))
    norm: NormKind = draw(st.sampled_from(("layernorm", "layernorm", "rmsnorm")))
    return ArchSpec(
        stem=stem,
        head=Classes(count=draw(st.sampled_from((2, 5))), pooling=pooling),
        d_model=draw(st.sampled_from((8, 16))),
        layers=tuple(layers),
        max_tokens=stem.tokens,
        norm=norm,
        norm_bias=norm == "layernorm" and draw(st.booleans()),
        positions="learned" if positions == "learned" else "none",
    )


@st.composite
def question_archs(draw: st.DrawFn) -> ArchSpec:
    """Small models that answer questions about images: patches or convolutions; tokens separate, averaged or joined."""
    arch = draw(image_archs().filter(lambda arch: arch.stem.axes == 2))
    stem = replace(arch.stem_as(ImageStem), prefix_tokens=0, bias=False)
    merge = draw(st.sampled_from(("none", "mean", "join"))) if stem.grid % 2 == 0 else "none"
    projector = Projector(
        widths=(arch.d_model,) * 2, pool=2 if merge == "mean" else 1, join=2 if merge == "join" else 1
    )
    question = Question(words=draw(st.sampled_from((7, 30))), tokens=draw(st.sampled_from((1, 5))))
    layers = tuple(
        replace(layer, attention=layer.attention and replace(layer.attention, relative_buckets=0))
        for layer in arch.layers
    )
    asked = QuestionStem(image=stem, question=question, projector=projector)
    return replace(
        arch,
        stem=asked,
        layers=layers,
        head=Classes(count=arch.outputs, pooling="last"),
        positions="learned",
        max_tokens=asked.tokens,
    )


def crossing_archs() -> st.SearchStrategy[ArchSpec]:
    """Small models that answer questions about images, with cross-attention to the image in some or all layers."""
    return st.builds(crossed, question_archs(), st.lists(st.booleans(), min_size=3, max_size=3))


def crossed(arch: ArchSpec, which: Sequence[bool] = ()) -> ArchSpec:
    """``arch`` with cross-attention in the layers ``which`` (numbers), or in all layers if empty."""
    block = Attention(heads=2, kv_heads=2, head_size=8, qkv_bias=True, out_bias=True, rope=False, causal=False)
    chosen = [*which, *(False,) * len(arch.layers)][: len(arch.layers)]
    each = chosen if any(chosen) else [True] * len(arch.layers)
    layers = (replace(layer, cross=block if has else None) for layer, has in zip(arch.layers, each, strict=True))
    return replace(arch, layers=tuple(layers))


@st.composite
def denoiser_archs(draw_from: st.DrawFn) -> ArchSpec:
    """Small denoisers of 16 x 16 pixels: every patch, feed-forward and solver, guided or not."""
    arch = draw_from(image_archs().filter(lambda arch: arch.stem.axes == 2 and arch.head.pooling == "mean"))
    stem = replace(arch.stem_as(ImageStem), convs=(), prefix_tokens=0)
    layers = tuple(
        replace(layer, attention=layer.attention and replace(layer.attention, relative_buckets=0))
        for layer in arch.layers
    )
    return replace(
        arch,
        stem=stem,
        head=Denoiser(
            labels=draw_from(st.sampled_from((1, 5))),
            frequencies=draw_from(st.sampled_from((6, 16))),
            steps=draw_from(st.sampled_from((1, 3))),
            guidance=draw_from(st.sampled_from((1.0, 2.5))),
            solver=draw_from(st.sampled_from(("euler", "multistep"))),
            shift=draw_from(st.sampled_from((1.0, 2.0))),
        ),
        layers=layers,
        positions="learned",
        max_tokens=stem.tokens,
        norm="layernorm",
        norm_bias=False,
        norm_weight=False,
        norm_eps=1e-6,
    )


@st.composite
def ranking_archs(draw: st.DrawFn) -> ArchSpec:
    """Small ranking models: every table, attention, feed-forward and head that is built."""
    bag = draw(st.sampled_from((0, 0, 1, 3)))
    stem = RankingStem(
        items=ITEMS,
        history=draw(st.sampled_from((1, 2, 5))),
        candidates=draw(st.sampled_from((1, 4))),
        width=draw(st.sampled_from((0, 6))),
        tags=TAGS if bag else 0,
        bag=bag,
        bias=draw(st.booleans()),
    )
    bias = draw(st.booleans())
    layers = []
    for number in range(draw(st.integers(1, 3))):
        heads = draw(st.sampled_from((1, 2)))
        attention = Attention(
            heads=heads,
            kv_heads=heads,
            head_size=8,
            qkv_bias=bias,
            out_bias=bias,
            rope=False,
            relative_buckets=stem.history + 1,
            pointwise=draw(st.booleans()),
        )
        layers.append(_layer(draw, attention, whole=not number))
    head = draw(st.sampled_from((Scores(), Similarity())))
    return ArchSpec(
        d_model=draw(st.sampled_from((8, 16))),
        layers=tuple(layers),
        max_tokens=stem.history + 1,
        norm=draw(st.sampled_from(("rmsnorm", "layernorm"))),
        positions="none",
        head=head,
        stem=stem,
    )


@st.composite
def sound_archs(draw: st.DrawFn) -> ArchSpec:
    """Small speech recognisers of 24 frames: every stride, attention window, module and feed-forward that is built."""
    d_model = draw(st.sampled_from((8, 16)))
    convs = tuple(frame_conv(d_model, draw(st.sampled_from((1, 2)))) for _ in range(2))
    stem = SoundStem(seconds=FRAMES / 100, rate=100.0, channels=BANDS, convs=convs)
    bias = draw(st.booleans())
    layers = []
    for _ in range(draw(st.integers(1, 3))):
        heads = draw(st.sampled_from((1, 2)))
        attention = Attention(
            heads=heads,
            kv_heads=heads,
            head_size=8,
            qkv_bias=bias,
            out_bias=bias,
            rope=False,
            causal=False,
            chunk=draw(st.sampled_from((None, None, 2, 3, 6))),
        )
        conv = draw(st.sampled_from((None, ConvModule(taps=1, norm="layer"), ConvModule(taps=5, norm="layer"))))
        layers.append(replace(_layer(draw, attention), conv=conv))
    norm: NormKind = draw(st.sampled_from(("layernorm", "layernorm", "rmsnorm")))
    return ArchSpec(
        stem=stem,
        head=Ctc(count=draw(st.sampled_from((2, 7)))),
        d_model=d_model,
        layers=tuple(layers),
        max_tokens=stem.tokens,
        norm=norm,
        norm_bias=norm == "layernorm" and draw(st.booleans()),
        positions="learned",
    )


def sentence_archs() -> st.SearchStrategy[ArchSpec]:
    """Small text classifiers with 6 positions, 20 words and 3 classes: full and narrow tables."""
    sentence = SentenceSpace(size=6, words=20, classes=3, table=("full", "w4"))
    layer = LayerSpace(heads=(1, 2), ffn=("gelu", "swiglu"), ffn_width=(8, 20))
    spec = SpaceSpec(
        d_model=(8, 16), depth=(1, 2), head_size=(8,), layer=layer, norm="layernorm", weights=("fp32",),
        sentence=sentence,
    )  # fmt: skip
    space = SearchSpace(spec)
    return st.integers(0, 10_000).map(lambda seed: replace(space.drawn(1, seed)[0].arch, name="texts"))
