"""Reads the output of llama.cpp's benchmark program (``llama-bench -o json`` or ``jsonl``) as measurements.

A result of the program is one repeated test: of prompts (``n_prompt`` tokens, nothing generated) or of generation
(``n_gen`` tokens after ``n_depth`` tokens of context). A measurement needs both: prompts give TTFT, generation gives
TPOT. A TPOT sample is the mean over the steps of one repetition, so percentiles of single steps other than P50 are
unknown.

References:
    The format: llama.cpp, ``tools/llama-bench/README.md`` (fields ``samples_ns``, ``n_prompt``, ``n_gen``, …).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from chipwise.core.dtypes import FORMATS
from chipwise.core.fields import build
from chipwise.core.files import read_text
from chipwise.deploy.kits.kits import KitMachine, another_device, parse_whole
from chipwise.deploy.measure.harness import measurement_of
from chipwise.deploy.measure.measurement import Measurement
from chipwise.deploy.measure.messages import Reply, unobserved
from chipwise.errors import SpecError
from chipwise.model.arch.design import Design
from chipwise.model.ops.workload import Workload

MOST_PARAMETERS_OFF = 0.02  # largest relative difference between parameter counts of a file and the named model


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchTest:
    """One result: a test, and the nanoseconds of each repetition."""

    model_filename: str
    samples_ns: tuple[int, ...]
    n_prompt: int
    n_gen: int
    n_threads: int
    n_depth: int = 0
    n_gpu_layers: int = 0
    model_type: str = ""
    model_n_params: int = 0
    cpu_info: str = ""
    gpu_info: str = ""
    backends: str = ""
    build_commit: str = "unknown"
    build_number: int = 0
    type_k: str = "f16"
    type_v: str = "f16"

    @property
    def setting(self) -> tuple[object, ...]:
        """The settings that tests of one measurement have in common."""
        cache = (self.type_k, self.type_v)
        return self.model_filename, self.n_threads, self.n_gpu_layers, self.backends, self.cpu_info, *cache

    @property
    def on_gpu(self) -> bool:
        """Whether the model ran on a GPU, if the file reveals it."""
        return bool(self.gpu_info) and self.n_gpu_layers != 0


def is_llama_bench(text: str) -> bool:
    """Whether a file's text looks like the program's JSON or JSON lines, even if damaged."""
    head = text.lstrip()[:4000]
    return head.startswith(("[", "{")) and '"build_commit"' in head and '"model_filename"' in text


def read_llama_bench(path: str | Path) -> list[BenchTest]:
    """Reads the results in a file.

    Raises:
        SpecError: The file is missing, damaged or not of this format; the message names the field.
    """
    return parse_llama_bench(read_text(path), name=str(path))


def parse_llama_bench(text: str, *, name: str) -> list[BenchTest]:
    """Parses the results in the program's output; ``name`` says in messages where the output comes from.

    Raises:
        SpecError: The output is damaged or not of this format; the message names the field.
    """
    if text.lstrip().startswith("{"):
        lines = [(number, line) for number, line in enumerate(text.splitlines(), start=1) if line.strip()]
        rows: object = [parse_whole(line, name=f"{name}, line {number}") for number, line in lines]
    else:
        rows = parse_whole(text, name=name)
    if not isinstance(rows, list) or not rows:
        raise SpecError("holds no results of llama-bench", file=name)
    return [_test(row, f"result {number}", file=name) for number, row in enumerate(rows, start=1)]


def _test(row: object, place: str, *, file: str) -> BenchTest:
    if not isinstance(row, Mapping):
        raise SpecError("must be a mapping of fields", file=file, field=place)
    if lacking := [name for name in _NEEDED if name not in row]:
        raise SpecError(
            "this field is missing; write the file with: llama-bench -o json", file=file, field=f"{place}.{lacking[0]}"
        )
    try:
        found = build(BenchTest, {name: row[name] for name in BenchTest.__dataclass_fields__ if name in row})
    except SpecError as error:
        raise error.inside(file=file, field=place) from None
    if not found.samples_ns or min(found.samples_ns) <= 0:
        raise SpecError("must be times above zero, one per repetition", file=file, field=f"{place}.samples_ns")
    return found


_NEEDED = ("model_filename", "samples_ns", "n_prompt", "n_gen", "n_threads")


def measurements_of(
    tests: Sequence[BenchTest], design: Design, *, device: str | None = None, file: str
) -> list[Measurement]:
    """One measurement for each pair of a prompt test and a generation test with the same settings.

    A generation test is paired with the prompt test whose length equals the generation test's depth. If no test has a
    depth, each generation test is paired with every prompt test; ``decode_depth`` in a measurement's environment says
    so.

    Args:
        tests: Results of one model.
        design: The model.
        device: The device's name. Default: the GPU's or processor's, as the file states it.
        file: File name for messages.

    Raises:
        SpecError: The tests are of several models or of a model other than ``design``, were run on a device other than
            the stated one, or lack prompts or generation.
    """
    models = sorted({test.model_filename for test in tests})
    if len(models) > 1:
        raise SpecError(f"holds results of {len(models)} models ({', '.join(models)}); import one at a time", file=file)
    counted, stated = tests[0].model_n_params, design.arch.parameters()
    # files may store a tied head again
    head = design.arch.vocab_size * design.arch.d_model if design.arch.tie_embeddings else 0
    if counted and min(abs(counted / count - 1) for count in (stated, stated + head)) > MOST_PARAMETERS_OFF:
        raise SpecError(
            f"{models[0]} has {counted:,} parameters and {design.arch.name} has {stated:,}; with --model, "
            "name the model that was measured",
            file=file,
        )
    if device is not None:
        _check_device(tests, device, file=file)
    prompts = [test for test in tests if test.n_prompt and not test.n_gen]
    generations = [test for test in tests if test.n_gen and not test.n_prompt]
    for found, what, flag in ((prompts, "prompt", "-p"), (generations, "generation", "-n")):
        if not found:
            raise SpecError(f"holds no {what} test; run llama-bench with {flag} too", file=file)
    pairs = []
    for prompt in prompts:
        same = [test for test in generations if test.setting == prompt.setting]
        deep = [test for test in same if test.n_depth == prompt.n_prompt]
        pairs += [(prompt, each) for each in deep or [test for test in same if not test.n_depth]]
    if not pairs:
        raise SpecError("no prompt test was made with the same settings as a generation test", file=file)
    return [_measurement(prompt, generation, design, device=device) for prompt, generation in pairs]


def _check_device(tests: Sequence[BenchTest], device: str, *, file: str) -> None:
    for test in tests:
        name = test.cpu_info or "unnamed"  # phones do not state it
        machine = KitMachine(name=name, cpu=test.cpu_info, cores=1, gpus=tuple(filter(None, [test.gpu_info])))
        if (other := another_device(device, machine)) is not None:
            raise SpecError(f"measured on {other}, which is not {device}; correct --device", file=file)


def format_of(test: BenchTest) -> str | None:
    """The weight format in ``model_type`` (``llama 1B Q4_K - Medium``); None if there is no known one.

    >>> format_of(BenchTest(model_filename="", samples_ns=(), n_prompt=1, n_gen=0, n_threads=1, model_type="x Q8_0"))
    'q8_0'
    """
    match = re.search(r"\b(?:all )?(I?Q\d_\w+|B?F(?:16|32)|MXFP4)(?: - (Small|Medium|Large))?", test.model_type)
    if match is None:
        return None
    size = f"_{match[2][0]}" if match[2] else ""
    name = f"{match[1]}{size}".lower()
    name = {"f32": "fp32", "f16": "fp16"}.get(name, name)
    return name if name in FORMATS else None


def _measurement(prompt: BenchTest, generation: BenchTest, design: Design, *, device: str | None) -> Measurement:
    reply: Reply = {
        "facts": {"design": design.digest, "name": design.arch.name},
        **unobserved(),
        "machine": device
        or (prompt.gpu_info if prompt.on_gpu else prompt.cpu_info)
        or "unnamed machine of llama-bench",
        "runtime_version": f"llama-bench {prompt.build_commit} ({prompt.build_number})",
        "ttft_s": [sample / 1e9 for sample in prompt.samples_ns],
        "tpot_s": [sample / 1e9 / generation.n_gen for sample in generation.samples_ns],
        "steps_per_sample": generation.n_gen,
        "wall_s": (sum(prompt.samples_ns) + sum(generation.samples_ns)) / 1e9,
        "readings": {"lost": None},
        "settings": {
            "decode_depth": generation.n_depth,
            "gpu_layers": prompt.n_gpu_layers,
            "backends": prompt.backends,
            "cache": f"{prompt.type_k}, {prompt.type_v}",
        },
    }
    return measurement_of(
        reply,
        model=Path(prompt.model_filename),
        workload=Workload(prompt_tokens=prompt.n_prompt, new_tokens=generation.n_gen + 1),
        runtime="llama.cpp",
        threads=prompt.n_threads,
    )
