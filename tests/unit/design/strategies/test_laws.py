import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chipwise.errors import InputError, SpecError, Unsupported
from chipwise.model.arch.arch import uniform
from chipwise.model.arch.feed_forward import FeedForward, MixtureOfExperts
from chipwise.model.arch.layer import Layer
from chipwise.model.arch.mixers import Attention
from chipwise.model.published.read import resolve
from chipwise.predict.cost.model import Predicted
from chipwise.training.laws import laws
from chipwise.training.laws.laws import (
    BESIROGLU,
    CONSTANTS,
    ExpectedQuality,
    law_fields,
    law_from,
    published_change,
    published_quality,
    shipped,
)
from chipwise.training.laws.shapes import Shapes

EXACT = replace(
    shipped(),
    constants=np.array(
        [0.0, math.log(2), 0.0, 0.5, math.log(0.5), 0.5, 0.0, math.log(4), math.log(1000), 0, 0, 0, 0, 0.5]
    ),
)  # floor 2, 1 · (n / 1e8)^-1/2, 1/2 · (t / 1e11)^-1/2; (1 + 4 / layers) (1 + 1000 / width)


def llama(depth: int = 32, width: int = 4096, **changes):
    return uniform(
        vocab_size=32_000, d_model=width, depth=depth, heads=width // 64, ffn_width=8 * width // 3, **changes
    )


def shape(layers: float, width: float, depth: float) -> Shapes:
    return Shapes(least=layers, most=layers, width=width, depth=depth)


def test_the_law_by_hand() -> None:
    # (1 + 4/4) (1 + 1000/1000) = 4 of 1.6e9: 4e8 effective, so 1 / 2; 4e11 tokens: 1/2 / 2
    assert EXACT.nats_per_token(shape(1.6e9, 1000, 4), 4e11) == pytest.approx([2 + 0.5 + 0.25])
    level = replace(EXACT, constants=EXACT.constants + np.eye(len(CONSTANTS))[0] * math.log(1.1))
    assert level.nats_per_token(shape(1.6e9, 1000, 4), 4e11) == pytest.approx([2.75 * 1.1])


def test_feed_forward_share_and_key_value_heads_by_hand() -> None:
    constants = EXACT.constants.copy()
    constants[CONSTANTS.index("ffn")], constants[CONSTANTS.index("kv")] = 0.5, 1.0
    odd = Shapes(least=1.6e9, most=1.6e9, width=1000, depth=4, ffn_share=10 * math.e**2, queries_per_kv=8)
    # e^(-0.5 · 2²) · 2/8 of 4e8: n = 1e8 · e^-2, so size^-1/2 = e
    found = replace(EXACT, constants=constants).nats_per_token(odd, 4e11)
    assert found == pytest.approx([2 + math.e + 0.25])


def test_narrow_attention_and_few_bits_by_hand() -> None:
    constants = EXACT.constants.copy()
    constants[CONSTANTS.index("attention")], constants[CONSTANTS.index("ln_bits")] = 0.5, math.log(4 / math.log(2))
    law = replace(EXACT, constants=constants)
    narrow = Shapes(least=1.6e9, most=1.6e9, width=1000, depth=4, attention_width=math.e**-2)
    assert law.nats_per_token(narrow, 4e11) == pytest.approx([2 + (4 * math.exp(-2)) ** -0.5 + 0.25])
    # 4 / γ = ln 2: four bits hold 1 - 1/2, sixteen 1 - 1/16
    few = Shapes(least=1.6e9, most=1.6e9, width=1000, depth=4, weight_bits=4)
    assert law.nats_per_token(few, 4e11) == pytest.approx([2 + (4 * 0.5 / (15 / 16)) ** -0.5 + 0.25])


def test_besiroglu_by_hand() -> None:
    # 70e9^0.3478 = e^(24.972 · 0.3478) = 5919; 1.4e12^0.3658 = e^(27.968 · 0.3658) = 27756
    # 1.8172 + 482.01 / 5919 + 2085.43 / 27756 = 1.8172 + 0.0814 + 0.0751
    assert BESIROGLU.nats_per_token(70e9, 1.4e12) == pytest.approx(1.9737, abs=2e-4)


def test_what_a_law_reads_of_a_model_by_hand() -> None:
    arch = uniform(vocab_size=1000, d_model=64, depth=3, heads=4, kv_heads=2, ffn_width=100)
    wide = replace(arch.layers[0], ffn=FeedForward(width=400))
    found = Shapes.of(replace(arch, layers=(*arch.layers[:2], wide)))
    attention = 64 * 64 * 2 + 64 * 32 * 2
    layers = 3 * attention + 3 * 64 * (100 + 100 + 400) + 3 * 2 * 64  # norms last
    assert found.columns()[:, 0] == pytest.approx([layers, layers, 64, 3, 3 * 64 * 200 / 64**2, 2, 1, 16])


def test_sensitivities_are_the_laws_derivatives() -> None:
    law, step = shipped(), 1e-6
    some = Shapes(
        least=np.array([2e8, 5e9]), most=np.array([4e8, 5e9]), width=np.array([512.0, 4096.0]),
        depth=np.array([12.0, 40.0]), ffn_share=np.array([6.0, 14.0]), queries_per_kv=np.array([1.0, 8.0]),
        attention_width=np.array([0.5, 2.0]), weight_bits=np.array([4.0, 8.0]),
    )  # fmt: skip
    tokens = np.array([2e10, 3e12])
    found = law.sensitivities(some, tokens)
    for i in range(len(CONSTANTS)):
        moved = replace(law, constants=law.constants + step * np.eye(len(CONSTANTS))[i])
        change = np.log(moved.nats_per_token(some, tokens) / law.nats_per_token(some, tokens)) / step
        assert found[:, i] == pytest.approx(change, rel=1e-4, abs=1e-7), CONSTANTS[i]


def test_the_shipped_law_is_a_covariance_and_survives_its_file() -> None:
    law = shipped()
    assert (np.linalg.eigvalsh(law.covariance) > 0).all()
    again = law_from(law_fields(law))
    assert again.constants.tolist() == law.constants.tolist()
    with pytest.raises(SpecError, match="not a law"):
        law_from({"constants": [1.0]})


PUBLISHED = [  # Gemstones (arXiv:2502.06857), after 350 billion tokens: width, layers, parameters, nats per token
    (256, 23, 48_377_600, 3.375),
    (768, 3, 103_814_400, 3.33),
    (1024, 28, 543_482_880, 2.703),
    (2048, 27, 1_904_850_944, 2.505),
]


def test_published_trainings_lie_inside_the_interval_and_in_its_order() -> None:
    values = []
    for width, depth, parameters, nats in PUBLISHED:
        found = shipped().loss(shape(parameters - 2 * 50_304 * width, width, depth), 350e9)
        assert found.low < nats < found.high
        values.append(found.value)
    assert values == sorted(values, reverse=True)


def test_differences_of_published_trainings_lie_inside_the_narrower_interval() -> None:
    shapes = [(shape(n - 2 * 50_304 * w, w, d), nats) for w, d, n, nats in PUBLISHED]
    for one, nats in shapes:
        for other, others in shapes:
            change = shipped().difference(one, other, 350e9)
            assert change.low <= others - nats + 1e-12
            assert others - nats <= change.high + 1e-12
            if one is not other:
                whole = shipped().loss(one, 350e9)
                assert change.high - change.low < 0.5 * (whole.high - whole.low)


def test_chinchilla_lies_inside_the_interval() -> None:
    # Hoffmann et al. 2022 with the constants as rounded in the text: 1.936 for 80 layers of 8,192 and 1.4 T tokens
    found = published_quality(llama(80, 8192), tokens=1.4e12)
    assert found.loss.low < 1.936 < found.loss.high


@given(st.floats(math.log(1e8), math.log(1e14)), st.floats(0.01, 3))
@settings(deadline=None, max_examples=30)
def test_more_text_never_hurts_and_the_interval_holds_the_figure(log_tokens, more) -> None:
    arch, tokens = llama(), math.exp(log_tokens)
    before, after = (published_quality(arch, tokens=t) for t in (tokens, tokens * math.exp(more)))
    assert after.loss.value < before.loss.value
    for found in (before, after):
        assert found.loss.low < found.loss.value < found.loss.high


@given(st.integers(8, 60), st.sampled_from([1.5, 2, 4]))
@settings(deadline=None, max_examples=30)
def test_a_larger_model_never_loses_where_text_is_plenty(depth, factor) -> None:
    small, large = llama(depth, 1024), llama(depth, int(1024 * factor) // 64 * 64)
    assert published_change(small, large, tokens=2e12).value < 0


def test_of_equal_parameters_neither_three_layers_nor_a_narrow_stream_is_best() -> None:
    law, parameters = shipped(), 4e8
    depths = np.array([2, 4, 8, 16, 32, 64, 128, 256])
    width = np.sqrt(parameters / (15 * depths))
    n = np.full(len(depths), parameters)
    loss = law.nats_per_token(Shapes(least=n, most=n, width=width, depth=depths), 350e9)
    assert 8 <= depths[loss.argmin()] <= 64
    assert loss[0] > 1.02 * loss.min()  # Kaplan et al. 2020: six layers of 4,288 lose about 3 %
    assert loss[-1] > 1.02 * loss.min()


def test_far_from_the_published_trainings_the_interval_of_a_difference_widens_and_a_note_says_so() -> None:
    near, far = (published_quality(llama(24, 1024), tokens=t) for t in (1e11, 1e14))
    assert not near.notes
    assert any("outside the range of the published training runs" in note for note in far.notes)
    assert far.loss.high / far.loss.low > near.loss.high / near.loss.low
    inside, beyond = (published_change(llama(24, 768), llama(24, 1024), tokens=t) for t in (1e11, 1e14))
    assert beyond.high - beyond.low > inside.high - inside.low
    assert str(near).endswith("predicted, published law, another tokenizer and text")
    assert "[" in str(near)


def test_a_mixture_lies_between_its_active_and_all_its_parameters() -> None:
    experts = MixtureOfExperts(experts=8, active=2, expert=FeedForward(width=2048))
    layer = Layer(attention=Attention(heads=16, kv_heads=16, head_size=64), ffn=experts)
    mixture = replace(llama(24, 1024), layers=(layer,) * 24)
    found = published_quality(mixture, tokens=1e12)
    columns = Shapes.of(mixture).columns()
    fields = Shapes.__dataclass_fields__
    ends = [
        shipped().nats_per_token(Shapes(**dict(zip(fields, [n, n, *columns[2:, 0]], strict=True))), 1e12)[0]
        for n in columns[:2, 0]
    ]
    assert columns[0, 0] == 24 * mixture.layer_parameters(layer, active=True)
    assert found.loss.low < ends[1] < found.loss.value < ends[0] < found.loss.high
    assert "experts" in found.notes[0]


def test_shared_layers_count_between_once_and_as_often_as_they_run() -> None:
    whole = llama(24, 1024)
    layers = tuple(replace(layer, shares=i - 1) if i % 2 else layer for i, layer in enumerate(whole.layers))
    shared, alone = (published_quality(a, tokens=1e11) for a in (replace(whole, layers=layers), whole))
    assert shared.parameters < alone.parameters
    assert shared.loss.low < alone.loss.value < shared.loss.value


def test_what_the_laws_do_not_cover_is_refused() -> None:
    tiny = uniform(vocab_size=1024, d_model=64, depth=2, heads=2, ffn_width=128)
    with pytest.raises(InputError, match="chipwise train"):
        published_quality(tiny, tokens=1e9)
    with pytest.raises(InputError, match="tokens"):
        published_quality(llama(), tokens=1e6)
    with pytest.raises(InputError):
        published_quality(llama(), tokens=math.inf)
    with pytest.raises(Unsupported, match="next token"):
        published_quality(resolve("bert-base-uncased"), tokens=1e11)


def test_a_change_is_surer_than_either_figure_and_nothing_changes_nothing() -> None:
    before, after = llama(32, 4096), llama(28, 4096)
    values = [published_quality(arch, tokens=2e12).loss for arch in (before, after)]
    change = published_change(before, after, tokens=2e12)
    assert change.value == pytest.approx(values[1].value - values[0].value)
    assert change.high - change.low < 0.1 * (values[0].high - values[0].low)
    nothing = published_change(before, before, tokens=2e12)
    assert (nothing.low, nothing.value, nothing.high) == (0, 0, 0)


def test_a_change_and_its_reverse_are_opposite() -> None:
    one, other = llama(24, 1024), llama(12, 2048)
    there, back = published_change(one, other, tokens=1e11), published_change(other, one, tokens=1e11)
    assert (there.value, there.low, there.high) == pytest.approx((-back.value, -back.high, -back.low))


def test_a_million_designs_are_one_array() -> None:
    rng = np.random.default_rng(0)
    many = Shapes(least=rng.uniform(1e8, 1e9, 1000), most=rng.uniform(1e9, 2e9, 1000), width=1024.0, depth=24.0)
    together = shipped().nats_per_token(many, 1e11)
    fields = Shapes.__dataclass_fields__
    alone = [
        shipped().nats_per_token(Shapes(**dict(zip(fields, column, strict=True))), 1e11)[0]
        for column in many.columns()[:, :5].T
    ]
    assert together.shape == (1000,)
    assert together[:5] == pytest.approx(alone, rel=1e-12)


def test_bits_per_byte_where_the_tokenizer_is_known() -> None:
    found = published_quality(llama(24, 1024), tokens=1e11)
    per_byte = found.per_byte(4.0)
    assert per_byte.unit == "bits/byte"
    assert per_byte.loss.value == pytest.approx(found.loss.value / math.log(2) / 4)
    with pytest.raises(InputError, match="bytes per token"):
        found.per_byte(0)


def test_shapes_apart_err_independently() -> None:
    one, two = shape(1e9, 2048, 20), shape(1e9, 1024, 80)
    assert laws.alikeness(one, one) == pytest.approx([1])
    assert laws.alikeness(one, two) < 0.1


def test_what_a_training_is_expected_to_reach_is_shown_with_its_interval() -> None:
    found = ExpectedQuality(
        loss=Predicted(value=2.345, low=2.3, high=2.41), unit="nats/token", source="s", basis="published law",
        parameters=1e9, tokens=2e10,
    )  # fmt: skip
    assert str(found) == found.headline() == "2.35 nats/token [2.30, 2.41], published law"
    assert found.rows() == [{"unit": "nats/token", "value": 2.345, "low": 2.3, "high": 2.41}]


def test_the_interval_by_hand() -> None:
    """A level known to 3 %, a shape to 4 % and a training to 12 %: together 13 %, nine in ten within 1.645 of them."""
    unsure = replace(
        EXACT,
        covariance=np.diag([0.03**2] + [0.0] * (len(CONSTANTS) - 1)),
        scatter=0.04,
        noise=0.12,
        layer_parameters=(1e8, 1e10),
        tokens=(1e10, 1e13),
    )
    found = unsure.loss(shape(1.6e9, 1000, 4), 4e11)
    assert found.value == pytest.approx(2.75)
    assert math.log(found.high / found.value) == pytest.approx(1.6449 * 0.13, rel=1e-4)
    assert math.log(found.value / found.low) == pytest.approx(1.6449 * 0.13, rel=1e-4)


def test_the_interval_of_a_difference_by_hand() -> None:
    """The level is common and counts for the difference alone; scatter counts twice where shapes are unlike."""
    law = replace(
        EXACT,
        covariance=np.diag([0.03**2] + [0.0] * (len(CONSTANTS) - 1)),
        scatter=0.04,
        layer_parameters=(1e8, 1e10),
        tokens=(1e10, 1e13),
    )
    one, other = shape(1.6e9, 1000, 4), shape(1.6e9, 1e5, 4)  # 1.01 instead of 2: n = 8e8 / 1.01
    found = law.difference(one, other, 4e11)
    loss = 2.25 + (8 / 1.01) ** -0.5
    assert found.value == pytest.approx(loss - 2.75)
    spread = math.sqrt(2 * 0.04**2 * 2.75 * loss + 0.03**2 * found.value**2)
    assert found.high - found.value == pytest.approx(1.6449 * spread, rel=1e-4)
    assert found.value - found.low == pytest.approx(1.6449 * spread, rel=1e-4)
    values, low, high = law.differences(one, other, 4e11)
    assert (values[0], low[0], high[0]) == pytest.approx((found.value, found.low, found.high))


def test_beyond_the_trainings_the_published_law_widens_the_interval() -> None:
    """1e10 tokens more than known, and eight times the layers: what both laws say of the way there differs."""
    law = replace(
        EXACT, covariance=np.zeros((14, 14)), scatter=0.0, noise=0.0, layer_parameters=(1e8, 2e8), tokens=(1e10, 4e11)
    )
    inside = law.loss(shape(1.6e8, 1000, 4), 4e11)
    assert inside.low == inside.value == inside.high
    more = law.loss(shape(1.6e8, 1000, 4), 1.6e12)
    known = shape(1.6e8, 1000, 4)
    own = math.log(law.nats_per_token(known, 1.6e12)[0] / law.nats_per_token(known, 4e11)[0])
    other = math.log(BESIROGLU.nats_per_token(1.6e8, 1.6e12) / BESIROGLU.nats_per_token(1.6e8, 4e11))
    assert math.log(more.high / more.value) == pytest.approx(1.6449 * abs(own - other), rel=1e-4)
    large = law.loss(shape(1.6e9, 1000, 4), 4e11)
    inner = shape(2e8, 500, 2)  # an eighth of the parameters is half of the width and of the depth
    own = math.log(law.nats_per_token(shape(1.6e9, 1000, 4), 4e11)[0] / law.nats_per_token(inner, 4e11)[0])
    other = math.log(BESIROGLU.nats_per_token(1.6e9, 4e11) / BESIROGLU.nats_per_token(2e8, 4e11))
    assert math.log(large.high / large.value) == pytest.approx(1.6449 * abs(own - other), rel=1e-4)
    change = law.difference(known, shape(1.6e9, 1000, 4), 4e11)
    half = 1.6449 * abs(own - other) * math.sqrt(large.value * inside.value)
    assert change.high - change.value == pytest.approx(half, rel=1e-4)


def test_notes_name_what_is_outside_the_trainings() -> None:
    law = replace(EXACT, layer_parameters=(1e8, 2e9), tokens=(1e10, 3.5e11))
    assert law.notes(shape(1e8, 64, 4), 3.5e11) == []
    assert law.notes(shape(2e9, 64, 4), 1e10) == []
    assert law.notes(shape(3e9, 64, 4), 2e12) == [
        "3B parameters in layers are outside the range of the published training runs, 100M to 2B",
        "2T tokens are outside the range of the published training runs, 10B to 350B",
    ]
    assert law.notes(shape(9e7, 64, 4), 9e9) == [
        "90M parameters in layers are outside the range of the published training runs, 100M to 2B",
        "9B tokens are outside the range of the published training runs, 10B to 350B",
    ]
    mixture = Shapes(least=4e8, most=1e9, width=64, depth=4)
    assert law.notes(mixture, 1e11) == [
        "counts as 400M to 1B parameters in its layers (inactive experts, layers that share weights): the "
        "interval covers both, the figure is for their geometric mean"
    ]
    outside = Shapes(least=4e8, most=3e9, width=64, depth=4)
    assert len(law.notes(outside, 1e11)) == 2


def test_a_law_of_a_mixture_by_hand() -> None:
    """The geometric mean of 4e8 and 6.4e9 is 1.6e9; a law whose text term grows with size takes its root of 16."""
    mixture = Shapes(least=4e8, most=6.4e9, width=1000, depth=4)
    assert EXACT.nats_per_token(mixture, 4e11) == pytest.approx([2.75])
    constants = EXACT.constants.copy()
    constants[CONSTANTS.index("text_growth")] = 0.5
    assert replace(EXACT, constants=constants).nats_per_token(mixture, 4e11) == pytest.approx([2.5 + 0.25 * 4])
    constants[CONSTANTS.index("between")] = 0.0  # of the active ones alone
    active = replace(EXACT, constants=constants).nats_per_token(mixture, 4e11)
    assert active == pytest.approx([2 + 1 + 0.25 * 2])


def test_shapes_are_alike_by_their_logarithms() -> None:
    """Twice the width is ln 2 away, the distance at which errors correlate by e^(-1/2)."""
    one = Shapes(least=1e9, most=1e9, width=1024, depth=16, ffn_share=8)
    for changed in ({"width": 2048}, {"depth": 8}, {"ffn_share": 16}):
        assert laws.alikeness(one, replace(one, **changed)) == pytest.approx([math.exp(-0.5)])
    both = replace(one, width=2048, depth=32)
    assert laws.alikeness(one, both) == pytest.approx([math.exp(-1)])
    assert laws.alikeness(replace(one, ffn_share=0.0), replace(one, ffn_share=0.1)) == pytest.approx([1])


@pytest.mark.parametrize(
    ("tokens", "wide", "covered"),
    [(1e8, 1024, True), (0.99e8, 1024, False), (1e8, 256, False), (math.inf, 1024, False)],
)
def test_the_laws_begin_at_ten_million_parameters_and_a_hundred_million_tokens(tokens, wide, covered) -> None:
    small = uniform(vocab_size=1000, d_model=wide, depth=4, heads=wide // 64, ffn_width=2 * wide)
    assert (small.parameters() >= 1e7) == (wide == 1024)
    if covered:
        found = published_quality(small, tokens=tokens)
        assert (found.unit, found.tokens, found.source) == ("nats/token", tokens, shipped().source)
        assert found.parameters == pytest.approx(4 * small.layer_parameters(small.layers[0]))
    else:
        with pytest.raises(InputError, match=r"at least 10M parameters and 100M tokens"):
            published_quality(small, tokens=tokens)
        with pytest.raises(InputError):
            published_change(llama(), small, tokens=tokens)


def test_ones_own_law_is_named() -> None:
    own = replace(shipped(), source="three of mine")
    found = published_quality(llama(24, 1024), tokens=1e11, law=own)
    assert found.basis == "predicted, law with three of mine"
    assert found.per_byte(4.0).loss.high == pytest.approx(found.loss.high / (4 * math.log(2)))
    assert found.per_byte(0.5).loss.low == pytest.approx(found.loss.low * 2 / math.log(2))  # two tokens a byte
    for wrong in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(InputError, match="bytes per token must be positive"):
            found.per_byte(wrong)


def test_a_law_has_fourteen_constants() -> None:
    for wrong in ({"constants": np.zeros(13)}, {"covariance": np.zeros((14, 13))}):
        with pytest.raises(SpecError, match="a law needs 14 constants: level, ln_floor"):
            replace(EXACT, **wrong)
    fields = law_fields(EXACT)
    assert law_from(fields) is not EXACT
    for name in fields:
        with pytest.raises(SpecError, match="is not a law"):
            law_from({key: value for key, value in fields.items() if key != name})
    again = law_from(fields)
    assert (again.scatter, again.noise, again.source) == (EXACT.scatter, EXACT.noise, EXACT.source)
    assert (again.layer_parameters, again.tokens) == (EXACT.layer_parameters, EXACT.tokens)
    assert again.covariance.tolist() == EXACT.covariance.tolist()


@pytest.mark.parametrize(
    ("count", "said"), [(1e6, "1M"), (999e6, "999M"), (1e9, "1B"), (2.345e9, "2.35B"), (1e12, "1T"), (4.5e13, "45T")]
)
def test_counts_are_said_in_millions_and_more(count: float, said: str) -> None:
    assert laws._said(count) == said
