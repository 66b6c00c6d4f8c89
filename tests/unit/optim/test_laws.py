import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chipwise.core.errors import InputError, Unsupported
from chipwise.optim import laws
from chipwise.optim.laws import BESIROGLU, HOFFMANN, best_depth, published_change, published_quality, shape_cost
from chipwise.spec import Attention, FeedForward, Layer, uniform
from chipwise.spec.feed_forward import MixtureOfExperts
from chipwise.spec.hf import resolve


def llama(depth: int = 32, width: int = 4096):
    return uniform(vocab_size=32_000, d_model=width, depth=depth, heads=width // 64, ffn_width=8 * width // 3)


def test_chinchilla_by_hand() -> None:
    # 70e9^0.3478 = e^(24.972 · 0.3478) = 5919; 1.4e12^0.3658 = e^(27.968 · 0.3658) = 27756
    # 1.8172 + 482.01 / 5919 + 2085.43 / 27756 = 1.8172 + 0.0814 + 0.0751
    assert BESIROGLU.nats_per_token(70e9, 1.4e12) == pytest.approx(1.9737, abs=2e-4)


def test_the_figures_that_were_published_of_chinchilla_and_gopher() -> None:
    # With the constants as rounded in the text: 1.936 and 1.993 ("chinchilla's wild implications", 2022)
    rounded = replace(HOFFMANN, floor=1.69, size_exponent=0.34, text_exponent=0.28)
    assert rounded.nats_per_token(70e9, 1400e9) == pytest.approx(1.936, abs=1e-3)
    assert rounded.nats_per_token(280e9, 300e9) == pytest.approx(1.993, abs=1e-3)
    for law in (HOFFMANN, BESIROGLU, rounded):  # the same compute, spent better
        assert law.nats_per_token(70e9, 1400e9) < law.nats_per_token(280e9, 300e9)


def test_twenty_tokens_a_parameter_are_best_for_the_compute_of_chinchilla() -> None:
    flops = 6 * 70e9 * 1.4e12
    sizes = np.geomspace(1e9, 1e12, 2000)
    best = sizes[np.argmin([BESIROGLU.nats_per_token(n, flops / 6 / n) for n in sizes])]
    assert 15 < flops / 6 / best**2 < 30  # Besiroglu et al. 2024: 20 lies within, Hoffmann's constants give about 70


def test_the_covariance_repeats_the_published_standard_errors() -> None:
    published = {"size": 124.58 / 482.01, "text": 1293.23 / 2085.43, "floor": 0.03 / 1.8172}  # of logarithms, about
    size, text, floor, *exponents = np.sqrt(np.diag(laws.COVARIANCE))
    assert size == pytest.approx(published["size"], rel=0.1)
    assert text == pytest.approx(published["text"], rel=0.4)  # a skewed draw: its logarithm spreads less
    assert floor == pytest.approx(published["floor"], abs=0.003)
    assert exponents == pytest.approx([0.02, 0.02], abs=0.005)  # printed with two digits
    assert (np.linalg.eigvalsh(laws.COVARIANCE) > 0).all()


def test_sensitivities_are_the_laws_derivatives() -> None:
    n, d, step = 3e9, 2e11, 1e-6
    found = BESIROGLU.sensitivities(n, d)
    fields = ("size", "text", "floor", "size_exponent", "text_exponent")
    for i, field in enumerate(fields):
        value = getattr(BESIROGLU, field)
        moved = value * math.exp(step) if i < 3 else value + step
        change = replace(BESIROGLU, **{field: moved}).nats_per_token(n, d) - BESIROGLU.nats_per_token(n, d)
        assert change / step == pytest.approx(found[i], rel=1e-3)


@given(st.floats(math.log(1e8), math.log(1e14)), st.floats(0.01, 3))
@settings(deadline=None, max_examples=30)
def test_more_text_never_hurts_and_the_interval_holds_the_figure(log_tokens, more) -> None:
    arch, tokens = llama(), math.exp(log_tokens)
    before, after = (published_quality(arch, tokens=t) for t in (tokens, tokens * math.exp(more)))
    assert after.loss.value < before.loss.value
    for found in (before, after):
        assert found.loss.low < found.loss.value < found.loss.high
        assert found.loss.value > BESIROGLU.floor


@given(st.integers(4, 60), st.sampled_from([1.5, 2, 4]))
@settings(deadline=None, max_examples=30)
def test_a_larger_model_of_equal_proportions_never_loses(depth, factor) -> None:
    small = llama(depth, 1024)
    large = llama(depth, int(1024 * factor) // 64 * 64)
    law = [published_quality(arch, tokens=1e11).loss.value / (1 + shape_cost(arch)) for arch in (small, large)]
    assert law[1] < law[0]


def test_far_from_the_published_trainings_the_interval_widens_and_a_note_says_so() -> None:
    near, far = published_quality(llama(24, 2048), tokens=1e11), published_quality(llama(), tokens=1e14)
    assert not near.notes
    assert any("outside the published trainings" in note for note in far.notes)
    assert far.loss.high - far.loss.low > 2 * (near.loss.high - near.loss.low)
    assert str(near).endswith("predicted, published law, another tokenizer and text")
    assert "[" in str(near)


def test_the_best_shapes_that_were_published() -> None:
    # Levine et al. 2020: 30K wide for a trillion parameters; 80 layers of 13.5K for GPT-3's 175 B (it has 96 of 12,288)
    assert best_depth(1e12) == pytest.approx(95, abs=1)
    assert best_depth(175e9) == pytest.approx(80, abs=1.5)
    depth = best_depth(5e9)
    assert 12 * depth * math.exp(2 * (5.039 + 0.0555 * depth)) == pytest.approx(5e9, rel=1e-6)


def test_six_wide_layers_cost_three_per_cent() -> None:
    shallow, usual = (laws._cost_of(depth, 12 * depth * width**2) for depth, width in ((6, 4288), (48, 1600)))
    assert shallow == pytest.approx(0.03)  # Kaplan et al. 2020, section 3.1: "within 3%"
    assert usual < 0.001


def test_a_mixture_lies_between_its_active_and_all_its_parameters() -> None:
    experts = MixtureOfExperts(experts=8, active=2, expert=FeedForward(width=2048))
    layer = Layer(attention=Attention(heads=16, kv_heads=16, head_size=64), ffn=experts)
    mixture = replace(llama(24, 1024), layers=(layer,) * 24)
    found = published_quality(mixture, tokens=1e11)
    ends = [BESIROGLU.nats_per_token(n, 1e11) for n in (mixture.parameters(), mixture.active_parameters())]
    assert found.loss.low < ends[0] < found.loss.value < ends[1] < found.loss.high
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


def test_feed_forward_width_is_part_of_size_and_not_of_shape() -> None:
    wide = uniform(vocab_size=32_000, d_model=1024, depth=24, heads=16, ffn_width=8192)
    narrow = replace(wide, layers=tuple(replace(x, ffn=FeedForward(width=1024)) for x in wide.layers))
    values = [published_quality(arch, tokens=1e11).loss.value for arch in (wide, narrow)]
    assert values[0] < values[1]


def test_a_change_is_surer_than_either_figure() -> None:
    before, after = llama(32, 4096), llama(28, 4096)
    values = [published_quality(arch, tokens=2e12).loss for arch in (before, after)]
    change = published_change(before, after, tokens=2e12)
    assert change.value == pytest.approx(values[1].value - values[0].value)
    assert 0 < change.low < change.value < change.high
    assert change.high - change.low < 0.1 * (values[0].high - values[0].low)
    nothing = published_change(before, before, tokens=2e12)
    assert (nothing.low, nothing.value, nothing.high) == (0, 0, 0)


def test_sharing_layers_costs_nothing_at_best_and_half_the_parameters_at_worst() -> None:
    whole = llama(24, 1024)
    layers = tuple(replace(layer, shares=i - 1) if i % 2 else layer for i, layer in enumerate(whole.layers))
    change = published_change(whole, replace(whole, layers=layers), tokens=1e11)
    halved = sum(layer is not None for layer in layers) // 2 * whole.layer_parameters(whole.layers[0])
    laws_of = [BESIROGLU.nats_per_token(n, 1e11) for n in (whole.parameters(), whole.parameters() - halved)]
    assert change.low < 0 < change.value < laws_of[1] - laws_of[0] < change.high
