"""A toy run: a space whose costs and quality are known by formula, a trainer and limits that nothing measures."""

from __future__ import annotations

from types import SimpleNamespace

from chipwise.core.files import build
from chipwise.design.phases.choosing import Chooser
from chipwise.design.phases.halving import Rung
from chipwise.design.phases.screening import screen
from chipwise.design.run.spec import RunSpec
from chipwise.errors import TrainingDiverged
from chipwise.model.space.search_space import SearchSpace

LAW_RUN = {
    "name": "by-law",
    "target": {"device": "jetson-agx-orin", "runtime": "llama.cpp"},
    "workload": {"prompt_tokens": 128, "new_tokens": 64},
    "constraints": {"tpot_p50": "<= 12 ms"},
    "objectives": {"expected_loss": "minimize", "tpot_p50": "minimize"},
    "space": {
        "d_model": [640, 896, 1280],
        "depth": [8, 16, 24],
        "vocab_size": [32000],
        "head_size": [64],
        "layer": {"heads": [8, 16], "kv_heads": [4], "ffn": ["swiglu"], "ffn_width": [2048, 4096]},
        "layers": {"attention": "alike", "ffn_width": "alike", "ffn": "alike"},
        "weights": ["bf16"],
        "max_tokens": 1024,
    },
    "quality": {"method": "law"},
    "budget": {"tokens": "100B"},
}
MEASURED = SimpleNamespace(  # a target that everything is measured on
    measures=True, limits=(), predict=lambda design: {}
)
SPEC = build(
    RunSpec,
    {
        "name": "toy",
        "workload": {"prompt_tokens": 8, "new_tokens": 8},
        "space": {
            "d_model": [32, 64, 96, 128],
            "depth": [1, 2, 3],
            "vocab_size": [512],
            "layer": {"heads": [1, 2], "kv_heads": [1], "ffn": ["relu", "swiglu"], "ffn_width": [64, 128]},
            "max_tokens": 64,
        },
        "data": {},
        "constraints": {"tpot_p99": "<= 300 us"},
        "budget": {"cpu": "20 min", "final": "4 min"},
    },
)
SPACE = SearchSpace(SPEC.space)
PLAN = (Rung(budget=1.0, count=9), Rung(budget=3.0, count=4), Rung(budget=9.0, count=2))


def metrics(rows):
    size = SPACE.values(rows, "d_model") * SPACE.values(rows, "depth") * 1.0
    seconds = size * 1e-6
    return {
        "ttft_p50": seconds,
        "ttft_p99": seconds,
        "tpot_p50": seconds,
        "tpot_p99": seconds,
        "peak_memory": size,
        "parameters": size * 1000,
    }


def two_bytes(rows):
    """Bytes of text per token."""
    return 2.0 + 0.0 * rows[:, 0]


class FakeTrainer:
    """Bits per byte that fall with width and with time; some widths diverge."""

    def __init__(self, *, diverges: tuple[int, ...] = ()) -> None:
        self.asked: list[tuple[int, int]] = []
        self.diverges = diverges

    def run(self, jobs):
        for job in jobs:
            self.asked.append((job.candidate.number, job.rung))
            width = job.candidate.design.arch.d_model
            if width in self.diverges:
                yield job, TrainingDiverged("the loss was no longer finite at step 7")
                continue
            quality = 1.0 + 1.0 / (1 + job.budget) + 10.0 / width
            yield (
                job,
                {
                    "cpu_s": job.budget,
                    "tokens": int(1000 * job.budget),
                    "loss": quality,
                    "quantised_loss": quality,
                    "curve": [],
                },
            )


class Limits:
    """Knows who keeps the limits; asked once for each candidate, as a measurement is."""

    def __init__(self, trials, keeps=None) -> None:
        self.trials, self.keeps, self.measured = trials, keeps or (lambda item: True), []

    def within_limits(self, item) -> bool:
        known = self.trials[item.number].notes.within
        if known is None:
            self.measured.append(item.number)
            known = self.keeps(item)
            self.trials.note(item.number, within=known)
        return known

    def beyond(self, item) -> float:
        """The further past its limit, the wider."""
        return 0.0 if self.within_limits(item) else item.design.arch.d_model / 100


def make_chooser(*, final: float = 9.0, **settings) -> Chooser:
    """The chooser of the toy run."""
    screened = screen(SPACE, metrics, SPEC.limits, seed=0, draws=500)
    return Chooser(
        SPACE, screened, metrics, SPEC.goals, SPEC.limits, final=final, bytes_per_token=two_bytes, seed=0, **settings
    )  # fmt: skip
