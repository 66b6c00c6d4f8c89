"""Passes of a group of requests, what they cost and draw, and what memory holds: by pencil."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from chipwise.errors import Unsupported
from chipwise.hardware import datasheet
from chipwise.hardware.power_draw import floor_w
from chipwise.model.ops.collective import CollectiveOp
from chipwise.model.ops.elementwise import Elementwise
from chipwise.model.ops.matmul import Matmul
from chipwise.model.ops.norm import NormOp
from chipwise.predict.cost.model import Bound
from chipwise.predict.kernels.power import power
from chipwise.predict.served import energy as energies
from chipwise.predict.served import groups, served_energy
from chipwise.predict.served.batching import constants
from chipwise.predict.served.deployment import Deployment, deployed
from chipwise.predict.served.estimate import bound_of, fitting_requests, operator_costs, waiting
from chipwise.predict.served.groups import Group, GroupCost, grouped, memory_of
from chipwise.predict.served.kernel_times import FIGURES, Call, batches, op_at, time_kernels
from chipwise.predict.served.memory import DeviceMemory
from chipwise.predict.served.plan import Plan
from chipwise.predict.served.request import Request, resolved
from chipwise.predict.served.setting import PlacedOp
from chipwise.predict.served.stack_law import Work
from chipwise.predict.served.steps import PassTimes

H100 = datasheet.load("h100-sxm")


def group(**asked: Any) -> Group:
    (found,), errors = grouped([Request(**deployed({"model": "gpt2", "device": "h100-sxm", **asked}))])
    assert not errors
    return found


def sizes(step: Any) -> tuple[Any, ...]:
    return tuple(np.ravel(value).tolist() for value in (step.batch, step.query_tokens, step.past_tokens))


def test_passes_of_a_decoder() -> None:
    """9 requests over two stages: 5 are decoded at once, each with its prompt and half of its answer behind it."""
    found = group(batch=9, prompt_tokens=100, new_tokens=31, cached_tokens=30, pp=2)
    assert (found.replica_batch.tolist(), found.in_flight.tolist(), found.sequences.tolist()) == ([5], [9], [9])
    prompt = found.prefill().step
    assert sizes(prompt) == ([1], [70], [30])
    assert (prompt.encoder_tokens, prompt.encode, prompt.towers) == (0, False, ())
    step = found.decode().step
    assert sizes(step) == ([5], [1], [100 + 15])
    assert np.ravel(step.encoder_tokens).tolist() == [0]
    assert not step.encode


def test_passes_of_an_encoder_decoder_and_of_a_text_encoder() -> None:
    both = group(model="google-t5/t5-small", batch=4, prompt_tokens=100, new_tokens=31)
    prompt, step = both.prefill().step, both.decode().step
    assert sizes(prompt) == ([1], [1], [0])
    assert (prompt.encoder_tokens.tolist(), prompt.encode) == ([100], True)
    assert sizes(step) == ([4], [1], [15])
    assert (step.encoder_tokens.tolist(), step.encode) == ([100], False)
    texts = group(model="bert-base-uncased", batch=4, prompt_tokens=100)
    assert sizes(texts.prefill().step) == sizes(texts.decode().step) == ([4], [100], [0])
    assert texts.read.tolist() == [100]
    image = group(model="google/vit-base-patch16-224", batch=4)
    assert (image.read.tolist(), sizes(image.prefill().step)) == ([1], ([4], [197], [0]))


def test_who_is_served_keeps_its_sizes() -> None:
    asked = [
        Request(
            model="gpt2",
            deployment=Deployment(device="h100-sxm", dp=2),
            batch=b,
            prompt_tokens=100 + b,
            new_tokens=10 + b,
        )
        for b in (3, 5, 7)
    ]
    (found,), _ = grouped(asked)
    served = found.served(np.array([3, 0, 4]))
    assert served.rows == (0, 2)
    assert (served.in_flight.tolist(), served.replica_batch.tolist()) == ([3, 4], [2, 2])
    assert (served.prompt_tokens.tolist(), served.new_tokens.tolist()) == ([103, 107], [13, 17])
    assert served.cached_tokens.tolist() == [0, 0]
    assert served.tower_passes is None
    assert found.replica_batch.tolist() == [2, 3, 4]


def cost(found: Group, **fields: Any) -> GroupCost:
    """A request of 3 tokens: 2 s of prompt, steps of 0.5 s, 0.6 s between tokens."""
    known = {
        "group": found, "prefill": None, "decode": None, "prefill_s": np.array([2.0]), "step_s": np.array([0.5]),
        "tpot_s": np.array([0.6]), "log_halfwidth": np.array([0.2]), "ttft_log_halfwidth": np.array([0.5]),
        "taught_log_halfwidth": None, "situation": "seen", "memory": None,
    }  # fmt: skip
    return GroupCost(**(known | fields))


def test_what_a_request_takes_and_costs() -> None:
    found = cost(group(batch=4, prompt_tokens=100, new_tokens=3))
    whole = 2.0 + 2 * 0.6
    assert found.request_s.tolist() == pytest.approx([whole])
    share = 2.0 / whole
    assert found.request_log_halfwidth.tolist() == pytest.approx([share * 0.5 + (1 - share) * 0.2])
    assert found.tokens_per_s.tolist() == pytest.approx([4 * 3 / whole])
    read, written = found.usd_per_token(10.0)
    # two decode steps are the new tokens', all else the prompt's
    assert written.tolist() == pytest.approx([10 / 4 * (2 * 0.5) / 3])
    assert read.tolist() == pytest.approx([10 / 4 * (whole - 2 * 0.5) / 100])
    assert float(100 * read[0] + 3 * written[0]) == pytest.approx(10 / 4 * whole)
    assert cost(found.group, ttft_log_halfwidth=None).request_log_halfwidth is None
    taught = cost(found.group, taught_log_halfwidth=np.array([0.9]), ttft_log_halfwidth=None)
    assert taught.request_log_halfwidth.tolist() == [0.9]
    texts = cost(group(model="bert-base-uncased", batch=4, prompt_tokens=100, new_tokens=3), tpot_s=np.array([0.0]))
    assert texts.request_log_halfwidth.tolist() == [0.2]
    assert texts.tokens_per_s.tolist() == pytest.approx([4 * 100 / 2.0])
    read, written = texts.usd_per_token(10.0)
    assert (read.tolist(), written.tolist()) == ([pytest.approx(10 / 4 * 2.0 / 100)], [0.0])


def test_how_many_requests_memory_holds() -> None:
    """80 GB less 30 of weights, activations and runtime, over 4 GB of cache each: 12; as many in each replica."""

    def fitting(batch: int, *, weights: float = 20e9, cache: float = 4e9, dp: int = 1) -> int:
        found = group(batch=batch, dp=dp)
        each = float(found.sequences[0])
        values = {"weights": weights, "activations": 6e9, "runtime": 4e9, "cache": cache * each}
        memory = DeviceMemory(**{name: np.array([value]) for name, value in values.items()})
        device = replace(H100)
        free = device.mem_capacity_bytes - weights - 10e9
        held = fitting_requests(found, memory)
        assert held.dtype == np.int64
        assert int(held[0]) <= max(0, math.floor(free / max(cache, 1)) * dp) or not cache
        return int(held[0])

    room = math.floor((H100.mem_capacity_bytes - 30e9) / 4e9)
    assert fitting(50) == room
    assert fitting(50, dp=2) == 2 * room
    assert fitting(5) == 5
    assert fitting(50, cache=0.0) == 50
    assert fitting(50, weights=H100.mem_capacity_bytes) == 0
    assert fitting(50, weights=H100.mem_capacity_bytes - 10e9) == 0  # room for all but a cache
    assert waiting(3, 9) == "memory holds 3 of 9 requests at once, the others wait"


def test_memory_is_remembered_by_sizes_and_kind_of_device() -> None:
    one, other = group(batch=2), group(batch=3)
    assert memory_of(one) is memory_of(replace(one))
    assert memory_of(one) is not memory_of(other)
    assert memory_of(one).cache[0] * 3 == pytest.approx(memory_of(other).cache[0] * 2)
    few = len(groups._REMEMBERED)
    assert few <= groups.MOST_REMEMBERED == 256
    longer = memory_of(group(batch=2, new_tokens=256))
    assert longer.cache[0] / memory_of(one).cache[0] == pytest.approx((1024 + 256) / (1024 + 128))


def passed(*rows: tuple[PlacedOp, dict[str, float]]) -> PassTimes:
    figures = np.zeros((len(FIGURES), len(rows), 1))
    for p, (_, known) in enumerate(rows):
        for name, value in known.items():
            figures[FIGURES.index(name), p, 0] = value
    return PassTimes.of(tuple(part for part, _ in rows), figures, ("seen",) * len(rows))


PRODUCT = PlacedOp(place="a", op=Matmul(m=64, k=4096, n=4096, weights="bf16", activations="bf16"), count=3)
NORM = PlacedOp(place="b", op=NormOp(rows=64, width=4096, activations="bf16"))
SUM = PlacedOp(place="c", op=CollectiveOp(collective="all_reduce", payload_bytes=8, devices=2), count=2)


def test_kernels_of_a_pass_with_their_bounds() -> None:
    times = passed(
        (PRODUCT, {"latency_s": 4.0, "compute_s": 3.0, "memory_s": 2.0, "launch_s": 1.0, "doubt": 0.5}),
        (NORM, {"latency_s": 9.0, "compute_s": 1.0, "memory_s": 2.0, "launch_s": 3.0}),
        (SUM, {"latency_s": 1.0, "memory_s": 1.0}),
    )
    first, second, third = operator_costs(times, 0)
    assert (first.latency_s, first.compute_s, first.memory_s, first.launch_s) == (12.0, 9.0, 6.0, 3.0)
    assert (first.count, first.doubt, first.bound, first.work) == (3, 0.5, Bound.COMPUTE, PRODUCT.op.work())
    assert (second.bound, third.bound, third.latency_s) == (Bound.LAUNCH, Bound.LINK, 2.0)
    assert bound_of(times) == [Bound.COMPUTE]  # 12 s of 23
    assert bound_of(passed((NORM, {"latency_s": 9.0, "memory_s": 1.0}), (SUM, {"latency_s": 5.0}))) == [Bound.LINK]


def test_joules_of_a_pass_are_its_kernels_and_the_floor() -> None:
    """Kernels one after another at their power; while the host works, and devices speak, the floor."""
    times = passed((PRODUCT, {"latency_s": 1e-4}), (NORM, {"latency_s": 2e-5}), (SUM, {"latency_s": 5e-5}))
    drawn = [power(part.op, H100, np.array([s])) for part, s in ((PRODUCT, 1e-4), (NORM, 2e-5))]
    joules = [float(drawn[0].power_w[0]) * 3e-4, float(drawn[1].power_w[0]) * 2e-5]
    spread = sum(j * float(d.log_halfwidth[0]) for j, d in zip(joules, drawn, strict=True))

    def spent(total_s: float) -> tuple[float, float]:
        each = energies._Drawing(device=H100, times=times, total_s=np.array([total_s]))
        ((whole, width),) = energies._pass_energies([each])
        return float(whole[0]), float(width[0])

    busy_s = 3e-4 + 2e-5
    whole, width = spent(1e-3)
    assert whole == pytest.approx(sum(joules) + floor_w(H100) * (1e-3 - busy_s))
    assert width == pytest.approx(spread / whole)
    faster, narrow = spent(busy_s / 2)  # faster in serving than alone: as much power for half of the time
    assert faster == pytest.approx(sum(joules) / 2)
    assert narrow == pytest.approx(spread / 2 / faster)


def test_joules_of_a_token_share_the_prompt() -> None:
    """Two stages of two devices: stages without a request draw the floor; a step serves the batch of a replica."""
    found = cost(group(batch=1, prompt_tokens=100, new_tokens=3, tp=2, pp=2))
    idle = floor_w(H100) * (2 / 1 - 1)
    token = energies._token_j(found, np.array([10.0]), np.array([4.0]))
    prompt_j, step_j = 10.0 + idle * 2.0, 4.0 + idle * 0.5
    assert token.tolist() == pytest.approx([2 * (prompt_j + 2 * step_j / 1) / 3])
    busy = cost(group(batch=4, prompt_tokens=100, new_tokens=3, tp=2, pp=2))
    token = energies._token_j(busy, np.array([10.0]), np.array([4.0]))
    assert token.tolist() == pytest.approx([2 * (10.0 + 2 * 4.0 / 2) / 3])
    texts = cost(group(model="bert-base-uncased", batch=4, prompt_tokens=100))
    assert energies._token_j(texts, np.array([10.0]), np.array([10.0])).tolist() == pytest.approx([10.0 / (4 * 100)])
    one = energies.energy_j_per_token(
        cost(found.group), 0, energies.Energies(token_j=np.array([3.0]), log_halfwidth=np.array([0.15]))
    )
    assert one.value == 3.0
    assert math.log(one.high / one.value) == pytest.approx(math.hypot(0.15, 0.2))
    with pytest.raises(Unsupported, match="none"):
        energies.energy_j_per_token(found, 0, Unsupported("none"))


LOAD = served_energy.StepLoad(
    setting=resolved(Request(model="Qwen/Qwen3-14B", deployment=Deployment(device="h100-sxm", runtime="vllm"))).setting,
    device=H100, devices=1, requests=1, prompt_tokens=100, new_tokens=50,
)  # fmt: skip


def test_a_token_of_many_requests_shares_their_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step's work at full rates; each of 4 requests reads its prompt once in 50 steps."""

    def work(parts: Any, rows: int) -> Work:
        prompt = parts == "prompt"
        scale = 7.0 if prompt else 1.0
        names = ("weight_bytes", "product_flops", "cache_bytes", "attention_flops", "collective_bytes")
        return Work(
            **{name: np.array([scale * (i + 1) * 1e9]) for i, name in enumerate(names)}, collectives=6.0, kernels=11.0
        )

    asked: list[Any] = []

    def lowered(setting: Any, step: Any) -> str:
        asked.append(sizes(step))
        return "prompt" if int(np.ravel(step.query_tokens)[0]) == 100 else "step"

    monkeypatch.setattr(served_energy, "lower_pass", lowered)
    monkeypatch.setattr(served_energy.Work, "of", staticmethod(work))
    monkeypatch.setattr(served_energy.StepLoad, "held", lambda self: 4.0)
    found = served_energy.TokenWork.of(LOAD)
    assert asked == [([4], [1], [100 + 25]), ([1], [100], [0])]
    bandwidth, peak = H100.mem_bandwidth_bytes_per_s, served_energy.peak_flops_per_s(H100)
    assert found.memory_s == pytest.approx(1e9 / bandwidth)
    assert found.cache_s == pytest.approx(3e9 / bandwidth)
    assert found.decode_s == pytest.approx(2e9 / peak)
    assert found.prompt_s == pytest.approx(4 / 50 * 7 * (2e9 + 4e9) / peak)
    assert found.link_s == pytest.approx((5e9 + 4 / 50 * 35e9) / served_energy.link_bytes_per_s(H100))
    assert (found.kernels, found.collectives, found.requests) == (11.0, 6.0, 4.0)


WORK = served_energy.TokenWork(
    memory_s=1.0, cache_s=2.0, decode_s=4.0, prompt_s=8.0, link_s=16.0, kernels=32.0, collectives=64.0, requests=5.0
)


def test_shares_of_a_step_and_its_summands() -> None:
    shares = WORK.shares(20.0)
    assert (shares.memory, shares.compute, shares.attention) == (3 / 20, 12 / 20, 8 / 20)
    law = served_energy.step_law(LOAD, WORK)
    assert [float(amount.value) for amount in law] == [1.0, 4.0, 2.0, 8.0, 1.0, 32.0, 5.0, 5.0 / 50]
    assert [amount.sum for amount in law] == [0, 0, 1, 2, 3, 4, 5, 6]
    two = served_energy.step_law(replace(LOAD, devices=2), WORK)
    assert [float(amount.value) for amount in two[8:]] == [64.0, 16.0]
    still = served_energy.step_law(replace(LOAD, devices=2), replace(WORK, collectives=0.0))
    assert float(still[8].value) == 1.0
    gpu, kind, both, count, own, bits, sort = replace(LOAD, devices=2).levels
    assert (gpu, kind, both, count, own) == ("h100-sxm", "dense", "h100-sxm|dense", "n2", "h100-sxm|n2")
    assert (bits, sort) == (LOAD.setting.formats.weights, "h100-sxm|chat")
    mixture = resolved(
        Request(model="Qwen/Qwen3-30B-A3B", deployment=Deployment(device="h100-sxm", runtime="vllm"))
    ).setting
    assert replace(LOAD, setting=mixture).levels[1] == "experts"


def test_requests_that_memory_holds_of_a_load() -> None:
    assert LOAD.held() == 1.0
    assert replace(LOAD, requests=8).held() == 8.0
    long = replace(LOAD, requests=4000, prompt_tokens=4000, new_tokens=4000)
    assert 1.0 < long.held() < 256
    shorter = replace(long, prompt_tokens=2000, new_tokens=2000)
    assert shorter.held() == pytest.approx(2 * long.held(), rel=1e-6)


@pytest.mark.parametrize(("devices", "tp"), [(16, 8), (8, 8), (7, 1), (6, 1), (5, 2), (1, 1)])
def test_products_are_split_over_as_many_devices_as_divide_them(devices: int, tp: int) -> None:
    """All, a half or a quarter of the devices, or one: of 40 heads and a width of 17,408."""
    assert served_energy.shared(LOAD.setting, devices).plan == Plan(tp=tp)


def test_watts_of_a_load_are_those_of_its_devices() -> None:
    """All devices draw; joules of a token are watts over tokens a second; intervals are the laws' own."""
    setting = replace(LOAD.setting, plan=Plan(tp=2))
    found = served_energy.served_power(setting, H100, requests=8, prompt_tokens=100, new_tokens=50)
    load = served_energy.StepLoad(
        setting=setting, device=H100, devices=2, requests=8, prompt_tokens=100, new_tokens=50, sort=served_energy.SORT
    )
    work = served_energy.TokenWork.of(load)
    held = served_energy.constants()
    step_s = float(served_energy.value_of(served_energy.step_law(load, work), held["tokens_s"].terms()))
    watts = found["served_power_w"]
    assert 2 * 70 < watts.value <= 2 * H100.board_power_w
    assert found["served_joules_per_token"].value == pytest.approx(watts.value * step_s / work.requests)
    assert watts.low < watts.value < watts.high
    one = served_energy.served_power(LOAD.setting, H100, requests=8, prompt_tokens=100, new_tokens=50)
    assert one["served_power_w"].value <= H100.board_power_w
    for device, runtime in (("rtx-4090", "vllm"), ("mi300x", "vllm"), ("h100-sxm", "llama.cpp")):
        other = resolved(Request(model="gpt2", deployment=Deployment(device=device, runtime=runtime)))
        with pytest.raises(Unsupported, match="serving engines"):
            served_energy.served_power(other.setting, other.device, requests=1, prompt_tokens=9, new_tokens=9)


class Listed:
    """A device that is listed with what it was taught."""

    def __init__(self, device: Any, taught: Any) -> None:
        self.device, self.taught = device, taught

    def __getattr__(self, name: str) -> Any:
        return getattr(self.device, name)


def test_a_first_token_of_a_listed_machine_is_at_least_so_unsure(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that is listed and not taught: where no prompt of its class was checked, a factor of e."""
    board = datasheet.load("raspberry-pi-5")
    teaching = SimpleNamespace(rows=0, provenance="listed")
    found = replace(group(device=replace(board, taught=None), runtime="onnxruntime"))
    kernels = groups.time_groups([found])[0]
    known = constants()
    plain = groups._cost(found, kernels, known, None)
    monkeypatch.setattr(groups.intervals, "class_width", lambda *args, **options: None)
    listed = replace(found, device=Listed(board, teaching))
    monkeypatch.setattr(groups.intervals, "situation_of", lambda *args: "unseen")
    monkeypatch.setattr(groups.intervals, "sorts", lambda setting, device, waiting: np.array(["dense, waiting"]))
    monkeypatch.setattr(groups.stack_law, "served_where", lambda *args: None)
    for width in (0.3, 1.7):
        monkeypatch.setattr(groups.intervals, "of_runs", lambda *args, width=width: np.array([width]))
        cost_there = groups._cost(listed, kernels, known, None)
        assert cost_there.ttft_log_halfwidth.tolist() == [max(1.0, width)]
    assert plain.log_halfwidth.shape == (1,)


def test_an_elementwise_kernel_is_not_a_product() -> None:
    added = PlacedOp(place="d", op=Elementwise(function="add", elements=9))
    times = passed((added, {"latency_s": 1.0, "memory_s": 1.0}))
    assert bound_of(times) == [Bound.MEMORY]
    assert times.class_s("matmul").tolist() == [0.0]


def test_nothing_to_time_takes_nothing() -> None:
    """No kernels, no groups and no passes have no figures, and no row of them."""
    found = time_kernels([])
    assert (found.figures.shape, found.situations) == ((len(FIGURES), 0), ())
    assert groups.time_groups([]) == []
    assert groups.cost_groups([]) == []
    assert energies.energies([]) == []
    assert energies._pass_energies([]) == []


def test_kernels_that_differ_in_sizes_are_timed_together_and_each_gets_its_own() -> None:
    """Two products of one format and a norm between them: the times of each are those of each alone, in their order."""
    small, large = (Matmul(m=64, k=512, n=n, weights="bf16", activations="bf16") for n in (512, 8192))
    many = Matmul(m=np.array([1, 64, 4096]), k=512, n=512, weights="bf16", activations="bf16")
    norm = NormOp(rows=64, width=4096, activations="bf16")
    calls = [
        Call(op=op, device=H100, stack="vllm", rows=rows) for op, rows in ((small, 1), (norm, 1), (many, 3), (large, 1))
    ]
    together = time_kernels(calls)
    assert together.figures.shape == (len(FIGURES), 6)
    assert [batch.members for batch in batches(calls)] == [(0, 2, 3), (1,)]
    alone = [time_kernels([call]).figures for call in calls]
    np.testing.assert_allclose(together.figures, np.hstack(alone))
    assert together.figures[0, 0] == together.figures[0, 3]  # 64 rows of the same product
    assert op_at(many, 2) == replace(many, m=4096)
    assert op_at(small, 2) == small


def test_only_prompts_that_share_a_pass_are_timed_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each group has a prefill and a decode step; of a decoder with others in flight also the pass that prompts share.

    A text encoder reads all its texts in one pass, however many there are, and one request has no other to wait for.
    """
    timed: list[int] = []
    real = groups.time_passes

    def counting(passes: Any, **options: Any) -> Any:
        timed.append(len(passes))
        return real(passes, **options)

    monkeypatch.setattr(groups, "time_passes", counting)
    many = group(runtime="sglang", batch=9, prompt_tokens=100, new_tokens=31)
    alone = group(runtime="sglang", batch=1, prompt_tokens=100, new_tokens=31)
    texts = group(runtime="sglang", model="bert-base-uncased", batch=9, prompt_tokens=100)
    assert [bool(np.any(each.together > 1)) for each in (many, alone, texts)] == [True, False, True]
    found = [groups.time_groups([each])[0] for each in (many, alone, texts)]
    assert timed == [3, 2, 2]
    shared = [each.prompts is not each.prefill for each in found if isinstance(each, groups.Kernels)]
    assert shared == [True, False, False]
    assert len(groups.time_groups([many, alone, texts])) == 3
    assert timed[-1] == 7


def test_groups_that_a_device_cannot_run_do_not_stop_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of five groups the second and the last cannot be run: each of the others has its own times."""
    known = [group(runtime="sglang", batch=n, prompt_tokens=100, new_tokens=31) for n in range(1, 6)]
    known = [replace(each, setting=replace(each.setting)) for each in known]
    errors = {id(known[1].setting): "two", id(known[4].setting): "five"}

    def answering(passes: Any, **options: Any) -> Any:
        for each in passes:
            if id(each.setting) in errors:
                raise Unsupported(errors[id(each.setting)])
        return [int(np.ravel(each.step.batch)[0]) for each in passes]

    monkeypatch.setattr(groups, "time_passes", answering)
    found = groups.time_groups(known)
    assert [str(each) if isinstance(each, Unsupported) else each.decode for each in found] == [1, "two", 3, 4, "five"]
    assert [each.prompts for each in found if not isinstance(each, Unsupported)] == [1, 2, 3]  # of those that wait
