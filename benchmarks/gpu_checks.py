"""The checks of ``gpu_day.py``: measurements on a GPU beside chipwise's predictions, if there are any.

Times are of CUDA events around many calls, the median of rounds. Predictions are for the data sheet that the device's
name belongs to; they are empty where there is none.
"""

from __future__ import annotations

import csv
import importlib.util
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

Row = dict[str, object]
ROOT = Path(__file__).resolve().parents[1]
SERVED = "qwen2.5-0.5b"  # small enough for every GPU
GEMMS = [(m, k, n) for m in (1, 16, 512, 4096) for k, n in ((1024, 4096), (4096, 4096), (4096, 14336))]
ATTENTIONS = [(32, 8, 128, batch, query, past) for batch, query, past in ((1, 1, 2048), (16, 1, 2048), (1, 2048, 0))]


@dataclass(frozen=True)
class Bench:
    """Where a check runs: on a GPU, or as a trial on the CPU with toy sizes."""

    fake: bool
    folder: Path

    @property
    def device(self) -> str:
        """The device's name for torch."""
        return "cpu" if self.fake else "cuda"

    @property
    def dtype(self) -> Any:
        """Number format in which kernels are timed: bf16 on GPUs, FP32 in a trial."""
        import torch

        return torch.float32 if self.fake else torch.bfloat16

    @property
    def name(self) -> str:
        """The device's own name."""
        import torch

        return "fake" if self.fake else torch.cuda.get_device_name(0)

    @property
    def sheet(self) -> str | None:
        """The data sheet that the name belongs to."""
        from chipwise.hardware import datasheet

        if self.fake:
            return "h100-sxm"
        words = self.name.lower().replace("nvidia", "").split()
        fitting = [known for known in datasheet.names() if words and words[0] in known.split("-")]
        closest = [known for known in fitting if all(part in self.name.lower() for part in known.split("-")[:1])]
        return min(closest, key=len, default=None)

    def seconds(self, call: Callable[[], Any], *, calls: int = 20, rounds: int = 5) -> float:
        """Seconds of one call: the median of rounds of many."""
        import torch

        for _ in range(3):
            call()
        found = []
        for _ in range(2 if self.fake else rounds):
            if self.fake:
                begin = time.perf_counter()
                call()
                found.append(time.perf_counter() - begin)
                continue
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            for _ in range(calls):
                call()
            end.record()
            torch.cuda.synchronize()
            found.append(start.elapsed_time(end) / 1e3 / calls)
        return statistics.median(found)


@dataclass(frozen=True)
class Check:
    """One check."""

    what: str
    run: Callable[[Bench], list[Row]]
    needs: str = "a GPU"
    package: str | None = None
    gpus: int = 1
    on_fake: bool = True

    def lacks(self, *, fake: bool) -> str | None:
        """Reason why the check cannot run here; None if it can."""
        if fake and not self.on_fake:
            return "only on a GPU"
        if self.package is not None and importlib.util.find_spec(self.package) is None:
            return f"{self.package} is not installed"
        if self.gpus > 1 and not fake:
            import torch

            if torch.cuda.device_count() < self.gpus:
                return f"there are fewer than {self.gpus} GPUs"
        return None


def gpu_here() -> bool:
    """Whether torch sees a GPU."""
    if importlib.util.find_spec("torch") is None:
        return False
    import torch

    return bool(torch.cuda.is_available())


def devices(bench: Bench) -> list[Row]:
    """The device, with its measured peaks beside those of the data sheet."""
    import torch

    from chipwise.core.dtypes import DType
    from chipwise.hardware import datasheet
    from chipwise.training.loop.accelerated import measured_peak

    named = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
    rows: list[Row] = []
    sheet = datasheet.load(bench.sheet) if bench.sheet else None
    for dtype in ("fp32",) if bench.fake else ("bf16", "fp16", "fp32"):
        peak = measured_peak(bench.device, named[dtype])
        stated = sheet.peak_flops_per_s.get(DType(dtype)) if sheet else None
        rows.append(
            {
                "device": bench.name,
                "sheet": bench.sheet,
                "torch": torch.__version__,
                "dtype": dtype,
                "measured_flops_per_s": peak,
                "sheet_flops_per_s": stated,
            }
        )
    return rows


def kernels(bench: Bench) -> list[Row]:
    """Products and attention, measured beside predicted."""
    import torch

    from chipwise_fitting.optable import ops_file

    rows: list[Row] = []
    for m, k, n in [(1, 64, 64)] if bench.fake else GEMMS:
        a = torch.randn(m, k, dtype=bench.dtype, device=bench.device)
        b = torch.randn(k, n, dtype=bench.dtype, device=bench.device)
        rows.append({"op": "matmul", "m": m, "k": k, "n": n, "measured_s": bench.seconds(lambda a=a, b=b: a @ b)})
    for heads, kv, size, batch, query, past in [(2, 2, 16, 1, 1, 32)] if bench.fake else ATTENTIONS:
        shape = {"heads": heads, "kv_heads": kv, "head_dim": size, "batch": batch}
        q = torch.randn(batch, heads, query, size, dtype=bench.dtype, device=bench.device)
        k, v = (torch.randn(batch, kv, query + past, size, dtype=bench.dtype, device=bench.device) for _ in range(2))

        def call(q: Any = q, k: Any = k, v: Any = v, causal: bool = past == 0 and query > 1) -> Any:
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)

        rows.append(
            {"op": "attention", **shape, "query_tokens": query, "past_tokens": past, "measured_s": bench.seconds(call)}
        )
    if bench.sheet is None:
        return rows
    columns = ["op", "device", "dtype", *dict.fromkeys(name for row in rows for name in row if name != "op")]
    bench.folder.mkdir(parents=True, exist_ok=True)
    asked, answered = bench.folder / "ops.csv", bench.folder / "answers.csv"
    with asked.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns, restval="")
        writer.writeheader()
        writer.writerows({**row, "device": bench.sheet, "dtype": "bf16"} for row in rows)
    ops_file(asked, answered)
    with answered.open(newline="") as file:
        return [{**row, "gpu": bench.name} for row in csv.DictReader(file)]


def _jobs(bench: Bench, widths: Mapping[str, tuple[int, int]], **changes: Any) -> list[Any]:
    """Trainings of plain models of these widths and depths on made-up tokens."""
    from chipwise.api.testing.trainer_suite import toy_job
    from chipwise.model.arch.feed_forward import FeedForward
    from chipwise.model.arch.layer import Layer
    from chipwise.model.arch.mixers import Attention

    jobs = []
    for name, (width, depth) in widths.items():
        job = toy_job(bench.folder, name)
        heads = max(1, width // 64)
        layer = Layer(
            attention=Attention(heads=heads, kv_heads=heads, head_size=64 if width >= 64 else 16),
            ffn=FeedForward(width=4 * width),
        )
        layers = (layer,) * depth
        arch = replace(job.arch, name=name, d_model=width, layers=layers, max_tokens=16 if bench.fake else 512)
        recipe = job.recipe if bench.fake else {"window_tokens": 512, "batch_windows": 32, "warmup_steps": 4}
        steps = 4 if bench.fake else 60
        values = {
            "arch": arch,
            "recipe": recipe,
            "steps": steps,
            "precision": "fp32",
            "device": bench.device,
            **changes,
        }
        jobs.append(replace(job, **values))
    return jobs


def training_rates(bench: Bench) -> list[Row]:
    """Tokens a second and MFU by size, precision and compilation."""
    from chipwise.training.loop.accelerated import measured_peak, multiplied

    sizes = {"5M": (256, 6), "30M": (512, 8), "120M": (768, 14), "350M": (1024, 24)}
    if bench.fake:
        sizes = {"tiny": (16, 1)}
    rows: list[Row] = []
    for precision in ("fp32",) if bench.fake else ("fp32", "bf16"):
        for compiler in (None,) if bench.fake else (None, "inductor"):
            for job in _jobs(bench, sizes, precision=precision, compiler=compiler):
                place = bench.folder / f"{precision}-{compiler}"
                told: list[Any] = []
                result = replace(job, folder=str(place / job.arch.name)).run(told.append)
                rate = result["tokens"] / max(result["spent_cpu_s"], 1e-9)
                import torch

                peak = measured_peak(bench.device, torch.bfloat16 if precision == "bf16" else torch.float32)
                rows.append(
                    {
                        "gpu": bench.name,
                        "model": job.arch.name,
                        "parameters": job.arch.parameters(),
                        "precision": precision,
                        "compiler": compiler or "eager",
                        "tokens_per_s": rate,
                        "mfu": None if peak is None else 6 * multiplied(job.arch) * rate / peak,
                    }
                )
    return rows


def packing(bench: Bench) -> list[Row]:
    """Small candidates trained side by side on one GPU: tokens per second over all."""
    from chipwise.training.trainers import cuda
    from chipwise.training.trainers.protocol import Setup

    many = {f"c{i}": (16 if bench.fake else 192, 1 if bench.fake else 4) for i in range(2 if bench.fake else 8)}
    gpu = cuda.Gpu(device=bench.device, name=bench.name, free_bytes=8e9) if bench.fake else cuda.gpus("cuda:0")[0]
    rows: list[Row] = []
    for most in (1, 2) if bench.fake else (1, 2, 4, 8):
        cuda.MOST_PACKED = most
        jobs = [
            replace(job, seed=i, folder=f"{job.folder}-{most}")
            for i, job in enumerate(_jobs(bench, many, steps=4 if bench.fake else 400))
        ]
        begin, tokens = time.perf_counter(), 0
        with cuda.CudaTrainer(Setup(on="cuda:0", folder=bench.folder, device="cuda"), devices=(gpu,)) as trainer:
            for event in trainer.run(jobs):
                if event.kind == "failed":
                    raise RuntimeError(event.data["message"])
                tokens += event.data["tokens"] if event.kind == "result" else 0
        rows.append(
            {
                "gpu": bench.name,
                "packed": most,
                "candidates": len(jobs),
                "tokens_per_s": tokens / (time.perf_counter() - begin),
            }
        )
    return rows


def fitting_batch(bench: Bench) -> list[Row]:
    """Trains with a share of the memory: microbatches are halved until they fit; the loss is unchanged."""
    import torch

    rows: list[Row] = []
    for share in (1.0,) if bench.fake else (1.0, 0.05, 0.025):
        if not bench.fake:
            torch.cuda.set_per_process_memory_fraction(share)
        (job,) = _jobs(bench, {"fit": (16, 1) if bench.fake else (512, 8)}, precision="fp32", steps=4)
        try:
            result = replace(job, folder=f"{job.folder}-{share}").run(lambda update: None)
            rows.append({"gpu": bench.name, "memory_share": share, "bits_per_byte": result["loss"]})
        except Exception as error:  # what does not fit at all is a row too
            rows.append({"gpu": bench.name, "memory_share": share, "bits_per_byte": None, "error": str(error)})
    return rows


def served(bench: Bench) -> list[Row]:
    """A known model in PyTorch on the GPU: eager, compiled, graphs; measured beside predicted."""
    from chipwise import api

    rows: list[Row] = []
    for runtime, predicted_as in (("torch-cuda", "torch-eager"), ("torch-cuda-compiled", "torch-compile")):
        outcome = api.measure(SERVED, runtime=runtime, prompt=512, new=64, keep=False)
        row: Row = {"gpu": bench.name, "model": SERVED, "runtime": runtime, **outcome.metrics}
        try:
            found = api.estimate(SERVED, device=bench.sheet or "", runtime=predicted_as, prompt=512, new=64)
            row |= {f"predicted_{name}": getattr(found, name, None) for name in ("ttft", "tpot")}
        except Exception as error:  # no such runtime on the data sheet
            row["error"] = str(error)
        rows.append(row)
    return rows


def vllm(bench: Bench) -> list[Row]:
    """A known model with made-up weights in vLLM: TTFT and TPOT at several batches, beside predicted."""
    from vllm import LLM, SamplingParams  # the user's own

    from chipwise import api

    engine = LLM(model="Qwen/Qwen2.5-0.5B", load_format="dummy", max_model_len=2048, skip_tokenizer_init=True)
    rows: list[Row] = []
    for batch in (1, 8, 32):
        prompts = [{"prompt_token_ids": [7 + i % 100] * 512} for i in range(batch)]
        took = {}
        for new in (1, 129):
            options = SamplingParams(max_tokens=new, ignore_eos=True, detokenize=False)
            engine.generate(prompts, options)
            begin = time.perf_counter()
            engine.generate(prompts, options)
            took[new] = time.perf_counter() - begin
        found = api.estimate(SERVED, device=bench.sheet or "", runtime="vllm", prompt=512, new=129, batch=batch)
        rows.append(
            {
                "gpu": bench.name,
                "batch": batch,
                "ttft_s": took[1],
                "tpot_s": (took[129] - took[1]) / 128,
                "predicted": found.headline(),
            }
        )
    return rows


def energy(bench: Bench) -> list[Row]:
    """Watts of the board under a product, by the driver's counter; idle first."""
    import torch

    rows: list[Row] = []
    size = 128 if bench.fake else 8192
    a = torch.randn(size, size, dtype=bench.dtype, device=bench.device)
    for load in ("idle", "matmul"):
        watts: list[float] = []
        until = time.monotonic() + (0.2 if bench.fake else 15.0)
        while time.monotonic() < until:
            for _ in range(50 if load == "matmul" and not bench.fake else 1):
                a @ a
            watts.append(_board_w(bench))
            time.sleep(0.05)
        rows.append({"gpu": bench.name, "load": load, "samples": len(watts), "median_w": statistics.median(watts)})
    return rows


def _board_w(bench: Bench) -> float:
    if bench.fake:
        return 100.0
    command = ["nvidia-smi", "--query-gpu=power.draw", "--format=csv,noheader,nounits", "--id=0"]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[0])


def tests(bench: Bench) -> list[Row]:
    """The tests that need a GPU."""
    subprocess.run([sys.executable, "-m", "pytest", "-q", "-m", "gpu", str(ROOT / "tests")], cwd=ROOT, check=True)
    return [{"gpu": bench.name, "outcome": "passed"}]


def search(bench: Bench) -> list[Row]:
    """The run file for a GPU, to its report."""
    from chipwise import api

    shutil.rmtree(bench.folder / "run", ignore_errors=True)
    record = api.search(ROOT / "examples" / "gpu-trainer.yaml", out=bench.folder / "run")
    best = record.trial(record.winner)
    assert best is not None
    return [
        {"gpu": bench.name, "trials": len(record.trials), "winner": best.number, "charged_s": record.budget.charged}
    ]


def sharing(bench: Bench) -> list[Row]:
    """One training on two GPUs, by ``torchrun``: copies, and parts of each layer."""
    rows: list[Row] = []
    for how in ("ddp", "fsdp"):
        out = bench.folder / how
        command = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--nproc-per-node",
            "2",
            "-m",
            "chipwise.cli",
            "train",
        ]
        command += [SERVED, "--steps", "20", "--sharing", how, "--out", str(out), "--json"]
        begin = time.perf_counter()
        subprocess.run(command, check=True)
        rows.append({"gpu": bench.name, "sharing": how, "wall_s": time.perf_counter() - begin})
    return rows


CHECKS = {
    "devices": Check("what the device is; peaks measured beside its data sheet", devices),
    "kernels": Check("products and attention, measured beside predicted", kernels),
    "training-rates": Check("tokens a second and MFU: fp32 and bf16, eager and compiled", training_rates),
    "packing": Check("1, 2, 4 and 8 small candidates side by side on one GPU", packing),
    "fitting-batch": Check("the largest part of a batch that fits: same loss on little memory", fitting_batch),
    "served": Check("a known model in PyTorch, measured beside predicted", served, on_fake=False),
    "vllm": Check("a known model in vLLM, TTFT and TPOT", vllm, needs="vllm", package="vllm", on_fake=False),
    "energy": Check("watts of the board, idle and under a product", energy, needs="nvidia-smi"),
    "tests": Check("the tests marked gpu", tests, on_fake=False),
    "search": Check("examples/gpu-trainer.yaml to its report", search, on_fake=False),
    "sharing": Check("one training on two GPUs", sharing, needs="two GPUs", gpus=2, on_fake=False),
}
