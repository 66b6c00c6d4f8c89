"""What a space's choices mean and how far they may go: designs, one-line summaries, ties, bounds, drawing."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from chipwise.core.files import build
from chipwise.design.limits import (
    is_cost,
    parse_constraints,
    parse_objectives,
    relative_excess,
    soft_limit_on_latency,
    unit_of,
)
from chipwise.errors import SpecError
from chipwise.model.arch.feed_forward import FeedForward
from chipwise.model.arch.layer import Layer
from chipwise.model.arch.mixers import Attention
from chipwise.model.space.designs import design_of, summary
from chipwise.model.space.search_space import Gene, SearchSpace, _closest, _distance
from chipwise.model.space.space_spec import MOST_BLOCKS, MOST_LAYERS, MOST_VALUES, Condition, SpaceSpec, _slot, listed
from chipwise.training.tasks.metric import Metric

LAYER = {"heads": [2, 4], "kv_heads": [1, 4], "ffn": ["relu", "swiglu"], "ffn_width": [64, 96]}


def spec(**changes: object) -> SpaceSpec:
    return build(SpaceSpec, {"d_model": [64, 128], "depth": [1, 2, 3], "vocab_size": [512], "layer": LAYER, **changes})


def chosen(**changes: object) -> dict[str, object]:
    layer = {"heads": 4, "kv_heads": 2, "ffn": "geglu", "ffn_width": 80}
    whole = {
        "d_model": 48,
        "depth": 3,
        "vocab_size": 300,
        "head_size": 12,
        "tie_embeddings": False,
        "weights": "int8",
        "sharing": "none",
        "layers": [layer, layer | {"ffn": "relu"}, layer | {"heads": 2}],
    }
    return whole | changes


def test_choices_become_the_design_that_they_describe() -> None:
    made = design_of(chosen(), spec=spec(max_tokens=99, norm="layernorm"), name="mine")
    arch = made.arch
    assert (arch.name, arch.d_model, arch.vocab_size, arch.max_tokens) == ("mine", 48, 300, 99)
    assert (arch.norm, arch.tie_embeddings, made.weights) == ("layernorm", False, "int8")
    assert arch.layers == (
        Layer(
            attention=Attention(heads=4, kv_heads=2, head_size=12),
            ffn=FeedForward(width=80, activation="gelu", gated=True),
        ),
        Layer(
            attention=Attention(heads=4, kv_heads=2, head_size=12),
            ffn=FeedForward(width=80, activation="relu", gated=False),
        ),
        Layer(
            attention=Attention(heads=2, kv_heads=2, head_size=12),
            ffn=FeedForward(width=80, activation="gelu", gated=True),
        ),
    )
    layer = chosen()["layers"][0]  # type: ignore[index]
    four = chosen(sharing="pairs", conv="both", layers=[layer] * 4, depth=4)
    assert [item.shares for item in design_of(four, spec=spec()).arch.layers] == [None, 0, None, 2]
    taps = [(item.attention_conv, item.ffn_conv) for item in design_of(four, spec=spec(conv_taps=3)).arch.layers]
    assert taps == [(3, 3)] * 4
    one = design_of(four | {"conv": "attention"}, spec=spec()).arch.layers[0]
    assert (one.attention_conv, one.ffn_conv) == (4, 0)


def test_a_design_in_one_line() -> None:
    space = spec()
    assert summary(design_of(chosen(), spec=space)) == "d48 L3 h4/2x2-2/2 geglu:80-relu:80-geglu:80 v300 untied int8"
    layer = chosen()["layers"][0]  # type: ignore[index]
    alike = chosen(layers=[layer] * 2, tie_embeddings=True, sharing="pairs", weights="fp32")
    assert summary(design_of(alike, spec=space)) == "d48 L2 shared h4/2 geglu:80 v300 tied fp32"
    for conv in ("both", "attention"):
        assert f"L2 shared conv:{conv} h4/2" in summary(design_of(alike | {"conv": conv}, spec=space))
    plain = design_of(alike, spec=space)
    odd = dataclasses.replace(plain.arch.layers[0], ffn=FeedForward(width=80, activation="relu2", gated=False))
    arch = dataclasses.replace(plain.arch, layers=(odd,))
    assert "relu2:80" in summary(dataclasses.replace(plain, arch=arch))


def test_what_is_chosen_where_a_file_says_nothing() -> None:
    plain = spec(layer={"heads": [1], "kv_heads": [1], "ffn_width": [64]})
    assert (plain.head_size, plain.tie_embeddings, plain.weights, plain.sharing) == (
        (32,),
        (True,),
        ("fp32",),
        ("none",),
    )
    assert (plain.conv, plain.conv_taps, plain.layers, plain.norm, plain.max_tokens) == (
        ("none",),
        4,
        "each",
        "rmsnorm",
        512,
    )
    assert plain.layer.ffn == ("swiglu",)
    space = SearchSpace(plain)
    assert [gene.name for gene in space.genes[:7]] == list(plain.globals)
    assert [(gene.label, gene.layer) for gene in space.genes[6:9]] == [
        ("sharing", None),
        ("layer0.attention", 0),
        ("layer0.ffn", 0),
    ]


@pytest.mark.parametrize(
    ("good", "bad", "field"),
    [
        ({"depth": [MOST_LAYERS]}, {"depth": [MOST_LAYERS + 1]}, "depth"),
        ({"d_model": [*range(2, MOST_VALUES + 2)]}, {"d_model": [*range(2, MOST_VALUES + 3)]}, "d_model"),
        ({"conv_taps": 2}, {"conv_taps": 1}, "conv_taps"),
        ({"d_model": [1]}, {"d_model": [0]}, "d_model"),
        ({"head_size": [2]}, {"head_size": [3]}, "head_size"),
        ({"layers": {"ffn": "alike"}}, {"layers": {"fnn": "alike"}}, "layers.fnn"),
        ({"layers": "thirds"}, {"layers": "quarters"}, "layers"),
    ],
)
def test_bounds_are_where_they_are_said_to_be(good: dict, bad: dict, field: str) -> None:
    one = {"layer": {"heads": [1], "kv_heads": [1], "ffn_width": [64]}}
    spec(**one | good)
    with pytest.raises(SpecError) as raised:
        spec(**one | bad)
    assert raised.value.field == field


def test_blocks_are_counted_by_hand() -> None:
    """Two widths and two formats of three pairs with two head sizes, and two kinds of FFN with two widths."""
    found = spec(weights=["fp32", "int8"], head_size=[16, 32])
    assert found.attention_choices() == ((2, 1), (4, 1), (4, 4))
    assert found._blocks() == 2 * 2 * (3 * 2 + 2 * 2)
    assert spec(conv=["none", "both"])._blocks() == 2 * 2 * (3 + 4)
    widths = [*range(8, 8 * 626, 8)]
    most = {"d_model": widths[:100], "layer": LAYER | {"ffn": ["relu"], "ffn_width": widths[:497]}}
    assert spec(**most)._blocks() == MOST_BLOCKS
    with pytest.raises(SpecError, match="allow 50,100 distinct blocks"):
        spec(**most | {"layer": LAYER | {"ffn": ["relu"], "ffn_width": widths[:498]}})


def test_which_layers_read_one_slot() -> None:
    assert [_slot("thirds", layer, 4) for layer in range(4)] == [0, 0, 1, 2]
    assert [_slot("alternating", layer, 5) for layer in range(5)] == [0, 1, 0, 1, 0]
    assert [_slot("alike", layer, 3) for layer in range(3)] == [0, 0, 0]
    assert [_slot("each", layer, 3) for layer in range(3)] == [0, 1, 2]
    space = SearchSpace(spec(sharing=["none", "pairs"], layers={"ffn": "alternating", "ffn_width": "thirds"}))
    slots = space.slots
    assert (slots["attention"].labels, slots["ffn"].labels) == (("0", "1", "2"), ("even", "odd"))
    assert slots["ffn_width"].labels == ("first", "middle", "last")
    assert slots["attention"].of[1, 2].tolist() == [0, 0, 2]  # pairs of three: the second reads the first's
    assert slots["ffn"].of[1, 2].tolist() == [0, 0, 0]
    assert slots["attention"].used[1].tolist() == [[True, False, False], [True, False, False], [True, False, True]]
    assert slots["attention"].used[0].tolist() == [[True, False, False], [True, True, False], [True, True, True]]
    labels = [gene.label for gene in space.genes if gene.layer is not None]
    assert labels[:3] == ["layer0.attention", "even.ffn", "first.ffn_width"]


def test_inactive_genes_are_zero_and_layers_past_the_depth_do_not_count() -> None:
    space = SearchSpace(spec(sharing=["none", "pairs"]))
    rows = np.ones((2, len(space.genes)), np.int64)
    rows[:, space.index["vocab_size"]] = rows[:, space.index["head_size"]] = 0
    for name in ("tie_embeddings", "weights"):
        rows[:, space.index[name]] = 0
    rows[:, space.index["sharing"]] = [0, 1]  # depth 2 of each: own layers, or one that both use
    active = space.active(rows)
    assert active[:, :7].all()
    assert active[:, 7:].tolist() == [[True] * 6 + [False] * 3, [True] * 3 + [False] * 6]
    assert space.canonical(rows)[:, 7:].tolist() == [[1] * 6 + [0] * 3, [1] * 3 + [0] * 6]
    layers = space.layer_rows(space.canonical(rows))
    assert layers[1, 0].tolist() == layers[1, 1].tolist() == [1, 1, 1]


def test_every_value_is_drawn_as_often_as_any_other() -> None:
    space = SearchSpace(spec())
    rows = space.sample(6_000, np.random.default_rng(0))
    assert np.bincount(rows[:, space.index["depth"]]) / 6_000 == pytest.approx([1 / 3] * 3, abs=0.03)
    first = space.columns["attention"][0]
    assert np.bincount(rows[:, first]) / 6_000 == pytest.approx([1 / 3] * 3, abs=0.03)
    assert (space.values(rows, "d_model") == np.array([64, 128])[rows[:, space.index["d_model"]]]).all()


def test_sizes_are_as_far_apart_as_their_ratio_and_words_are_equal_or_not() -> None:
    assert _distance(8, 4) == _distance(4, 8) == pytest.approx(math.log(2))
    assert _distance((4, 2), (2, 2)) == pytest.approx(math.log(2))
    assert (_distance("a", "a"), _distance("a", "b"), _distance(True, False)) == (0, 1, 1)
    gene = Gene("ffn_width", (64, 96, 256))
    assert [_closest(gene, values) for values in ([78], [79], [64, 64, 256], [150], [160])] == [0, 1, 0, 1, 2]


def test_conditions_read_as_sentences() -> None:
    one = Condition(when={"heads": 4}, only={"kv_heads": [1, 2], "ffn": "relu"})
    assert str(one) == "when heads [4]: only kv_heads [1, 2], ffn ['relu']"
    assert (listed((1, 2)), listed([1]), listed("ab")) == ([1, 2], [1], ["ab"])
    for wrong in ({"when": {}, "only": {"ffn": "relu"}}, {"when": {"ffn": "relu"}, "only": {}}):
        with pytest.raises(SpecError, match="must name at least one choice"):
            Condition(**wrong)


def test_limits_in_their_words_units_and_directions() -> None:
    text = {"ttft_p50": "< 2 ms", "peak_memory": "≤ 1 GB", "parameters": "> 1k", "power": "≥ 3 W"}
    found = parse_constraints(text)
    assert [(item.op, item.limit, item.text) for item in found] == [
        ("<=", 2e-3, "<= 2 ms"),
        ("<=", 1e9, "<= 1 GB"),
        (">=", 1e3, ">= 1k"),
        (">=", 3.0, ">= 3 W"),
    ]
    assert [item.show(item.limit) for item in found] == ["2 ms", "1 GB", "1 k", "3 W"]
    most, least = found[0], found[2]
    values = np.array([1e-3, 2e-3, 3e-3])
    assert relative_excess(most, values).tolist() == pytest.approx([-0.5, 0, 0.5])
    assert relative_excess(least, 1e6 * values).tolist() == pytest.approx([0, -1, -2])
    assert [least.excess(float(v)) for v in (1e6 * values)] == pytest.approx([0, -1, -2])
    assert least.holds(1e3)
    assert not least.holds(999)
    assert (unit_of("tpot_p50@l4"), unit_of("accuracy@x"), unit_of("spearman@x")) == ("time", "share", "count")
    with pytest.raises(SpecError, match="no value meets both"):
        parse_constraints({"parameters": [">= 3k", "<= 2k"]})
    assert len(parse_constraints({"parameters": [">= 2k", "<= 2k"]})) == 2
    assert len(parse_constraints({"tpot_p50": ">= 1 ms", "tpot_p99": "<= 1 ms"})) == 2
    goals = parse_objectives({"bits_per_byte": "down", "power": "up", "tpot_p50": "minimize", "parameters": "maximize"})
    assert [goal.direction for goal in goals] == ["minimize", "maximize", "minimize", "maximize"]
    for metric, sells in (
        ("tpot_p50", True),
        ("joules_per_token", True),
        ("usd_per_1k_tokens", True),
        ("power", False),
    ):
        unit = {"tpot_p50": "1 ms", "joules_per_token": "1 mJ", "usd_per_1k_tokens": "1 USD", "power": "1 W"}[metric]
        soft = parse_constraints({metric: {"limit": f"<= {unit}", "penalty": 1}})
        assert soft_limit_on_latency(soft) is sells
        assert not soft_limit_on_latency(parse_constraints({metric: f"<= {unit}"}))


def test_a_soft_limit_beside_a_hard_one_must_be_the_tighter() -> None:
    soft = {"limit": "<= 2 ms", "penalty": 1}
    for hard in ("<= 1 ms", "<= 2 ms"):
        with pytest.raises(SpecError, match="no effect"):
            parse_constraints({"tpot_p50": [soft, hard]})
    assert len(parse_constraints({"tpot_p50": [soft, "<= 3 ms", ">= 1 ms"]})) == 3


def test_one_odd_head_size_among_even_ones_is_refused() -> None:
    with pytest.raises(SpecError, match="head_size: rotary positions need even head sizes"):
        spec(head_size=[32, 33])


WIDE = {"d_model": [32], "depth": [2], "head_size": [16], "weights": ["int8"], "norm": "layernorm"}
DEEP = {"d_model": [16], "depth": [3], "head_size": [8], "weights": ["fp32"], "layers": "alike"}
IMAGE = {"size": 28, "classes": 10, "patch": [4]}
ASKED = {"size": 24, "channels": 3, "classes": 14, "question": 7, "words": 40, "patch": [4]}  # 36 patches
RANKED = {"items": 40, "history": 10, "candidates": 6, "tags": 5, "bag": 2}
HEARD = {"size": 80, "classes": 7, "channels": 12, "stride": [4]}  # 20 positions
TURNED = {"steps": [4], "solver": ["multistep"], "shift": [2], "guidance": [3], "latents": [2], "patch": [2]}
SEEING = {"heads": [2], "ffn": ["gelu"], "ffn_width": [64]}


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({"image": IMAGE}, "p4 patches class token d32 L2 h2x16 gelu:64 int8"),
        (
            {"image": IMAGE | {"pooling": ["mean"], "stem": ["conv8"], "positions": ["relative"]}},
            "p4 conv8 mean d32 L2 h2x16 relative gelu:64 int8",
        ),
        ({"image": IMAGE | TURNED}, "4 steps multistep shift 2 guided 3 latents 2 p2 d32 L2 h2x16 gelu:64 int8"),
        (
            {"image": ASKED | {"merge": ["mean"], "image_in": ["cross"]}},
            "p4 patches mean 9+7 d32 L2 h2x16 cross gelu:64 int8",
        ),
        ({"image": ASKED | {"merge": ["join"]}}, "p4 patches joined 9+7 d32 L2 h2x16 gelu:64 int8"),
        ({"image": ASKED}, "p4 patches 36+7 d32 L2 h2x16 gelu:64 int8"),
    ],
)
def test_a_line_of_images_says_what_was_chosen(fields: dict[str, object], line: str) -> None:
    assert only_line({**WIDE, "layer": SEEING, **fields}) == line


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        (
            {"ranking": RANKED | {"mixing": ["hstu"], "table": ["w8"], "score": ["scores"]}, "ffn": ["none"]},
            "hstu w8 scores d16 L3 h2x8 no FFN fp32",
        ),
        (
            {"ranking": RANKED | {"mixing": ["attention"], "table": ["full"], "score": ["similarity"]}},
            "attention full similarity d16 L3 h2x8 gelu:24 fp32",
        ),
        (
            {"sound": HEARD | {"window": ["local10"], "module": ["conv5"]}, "norm": "layernorm"},
            "s4 local10 conv5 d16 L3 h2x8 gelu:24 fp32",
        ),
        (
            {"sound": HEARD | {"window": ["global"], "module": ["none"]}, "norm": "layernorm"},
            "s4 global d16 L3 h2x8 gelu:24 fp32",
        ),
        ({"vocab_size": [256], "kv_heads": [1]}, "d16 L3 h2/1 gelu:24 v256 tied fp32"),
        (
            {"vocab_size": [256], "kv_heads": [2], "tie_embeddings": [False], "conv": ["both"]},
            "d16 L3 conv:both h2/2 gelu:24 v256 untied fp32",
        ),
    ],
)
def test_a_line_of_others_says_what_was_chosen(fields: dict[str, object], line: str) -> None:
    own = {name: fields[name] for name in ("ffn", "kv_heads") if name in fields}
    layer = {"heads": [2], "ffn": ["gelu"], "ffn_width": [24], **own}
    assert only_line({**DEEP, "layer": layer, **{k: v for k, v in fields.items() if k not in own}}) == line


def only_line(fields: dict[str, object]) -> str:
    """The line of a space's only design."""
    space = SearchSpace(build(SpaceSpec, fields))
    return summary(space.design(space.sample(1, np.random.default_rng(0))[0]))


def test_a_metric_is_shown_as_people_read_it() -> None:
    """Of accuracy the share that is right, of a loss the loss; three decimals below a hundred."""
    right = Metric(name="accuracy", title="accuracy", unit="share", more_is_better=True)
    assert (right.direction, right.shown(0.25), right.text(0.25)) == ("maximize", 0.75, "75 %")
    loss = Metric(name="distance", title="distance")
    assert (loss.direction, loss.shown(0.25), loss.text(0.25)) == ("minimize", 0.25, "0.250")
    assert (loss.text(99.9), loss.text(100.0), loss.text(-250.4)) == ("99.900", "100", "-250")


def test_costs_are_known_without_training() -> None:
    assert all(map(is_cost, ("tpot_p50", "peak_memory", "expected_loss", "power@l4")))
    assert not any(map(is_cost, ("bits_per_byte", "accuracy@mine")))


def test_steps_of_a_denoiser_count_as_steps_of_euler() -> None:
    """n multistep steps are about as good as n (n + 1) / 2 of Euler; a guided step is two passes."""
    image = IMAGE | {"patch": [2], "steps": [3, 4], "solver": ["euler", "multistep"], "guidance": [1, 2]}
    space = SearchSpace(build(SpaceSpec, {**WIDE, "layer": SEEING, "image": image | {"latents": [1, 2]}}))
    rows = space.sample(200, np.random.default_rng(0))
    steps, solver = space.values(rows, "steps"), space.values(rows, "solver")
    more = {(3, "euler"): 3, (4, "euler"): 4, (3, "multistep"): 6, (4, "multistep"): 10}
    assert space.equal_steps(rows).tolist() == [more[pair] for pair in zip(steps, solver, strict=True)]
    guided = space.values(rows, "guidance") == 2
    assert space.passes(rows).tolist() == (steps * np.where(guided, 2, 1)).tolist()
    factors = space.factors(rows)
    assert set(factors) == {1, 2}
    assert space.outputs(rows).tolist() == (2 * 2 * factors).tolist()  # a patch of pixels, or of as many channels
    for row, factor in zip(rows[:20], factors, strict=False):
        denoiser = space.design(row).arch.head
        assert denoiser is not None
        assert factor == (denoiser.latents.factor if denoiser.latents else 1)
    plain = SearchSpace(spec())
    rows = plain.sample(5, np.random.default_rng(0))
    for counted in (plain.equal_steps, plain.passes, plain.factors):
        assert counted(rows).tolist() == [1] * 5


def test_seconds_of_sound_in_a_request() -> None:
    """80 frames of 10 ms, as a sound or as a signal in slices; none of images, text or candidates."""
    heard = {**DEEP, "norm": "layernorm", "layer": {"heads": [2], "ffn": ["gelu"], "ffn_width": [24]}}
    assert build(SpaceSpec, {**heard, "sound": HEARD}).sound_s == pytest.approx(0.8)
    signal = IMAGE | {"size": 80, "axes": 1}
    assert build(SpaceSpec, {**WIDE, "layer": SEEING, "image": signal}).sound_s == pytest.approx(0.8)
    assert build(SpaceSpec, {**WIDE, "layer": SEEING, "image": IMAGE}).sound_s is None
    ranked = {name: value for name, value in heard.items() if name != "norm"}
    assert build(SpaceSpec, {**ranked, "ranking": RANKED}).sound_s is None
    assert spec().sound_s is None


def test_designs_are_drawn_by_seed() -> None:
    space = SearchSpace(spec())
    assert space.drawn(4, 1) == space.drawn(4, 1) != space.drawn(4, 2)
    assert space.drawn(4, 1) == [space.design(row) for row in space.sample(4, np.random.default_rng(1))]
