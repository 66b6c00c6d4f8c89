"""Measures a model on an Android phone connected by cable, and stores the measurement."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from chipwise.core.digest import digest
from chipwise.core.places import data_folder
from chipwise.deploy.export.exporters import reference_model
from chipwise.deploy.kits.adb import Bench, Phone, Rounds, contents, run_rounds
from chipwise.deploy.kits.llama_bench import BenchTest, measurements_of, parse_llama_bench
from chipwise.deploy.measure.measurement import Measurement
from chipwise.deploy.measure.store import MeasurementStore
from chipwise.deploy.measure.verdict import judge, spread
from chipwise.design.models.measuring import design_of_model, exported_file, usual_request
from chipwise.errors import InputError, MeasurementError

RUNTIME = "llama.cpp"
MOST_COOL_C = 60.0


def measure_phone(
    model: str | Path,
    *,
    program: str | Path,
    serial: str | None = None,
    rounds: int = 5,
    cool_c: float = 35.0,
    threads: int | None = None,
    prompt: int | None = None,
    new: int | None = None,
    weights: str | None = None,
    keep: bool = True,
    on_progress: Callable[[str, int, int], object] = lambda stage, done, total: None,
    sleep: Callable[[float], object] = time.sleep,
) -> Measurement:
    """Measures a decoder with llama.cpp on an Android phone connected with ``adb``; nothing stays on the phone.

    The phone cools down before each round. A round times a small reference model, then the model. After an
    interruption, such as an unplugged cable, calling the function again measures the missing rounds. The measurement's
    ``environment`` has temperatures, clock rates and battery charge before and after each round.

    Args:
        model: As for :func:`measure`; exported as a GGUF file if it is not one already.
        program: llama.cpp's ``llama-bench``, built for Android.
        serial: The phone's serial number; needed only if several phones are connected.
        rounds: Number of rounds. Each round gives one sample of TTFT and one sample of TPOT, which is a mean over all
            new tokens.
        cool_c: Highest battery temperature in °C at which a round begins. After waiting for a quarter of an hour it
            begins anyway, but the measurement is then marked as not clean.
        threads: Threads of the runtime. Default: for a winner as in its run, else 1.
        prompt: Prompt tokens. Default: for a winner as in its run, else 64.
        new: New tokens. Default: for a winner as in its run, else 64.
        weights: Weight format of a model that is not exported yet. Default: fp32.
        keep: Whether to save the result to the measurement store, under the name of the phone's chip or of the phone.
        on_progress: Called with the current activity, the number of finished rounds, and the number of all rounds.
        sleep: Function that waits for a number of seconds.

    Raises:
        InputError: An argument is wrong, or several phones are connected.
        Unreachable: No phone is connected, or the connection was lost.
        MeasurementError: The phone's storage is full, or llama-bench fails on the phone.
    """
    if not Path(program).is_file():
        raise InputError(f"{program}: there is no such file; build or download llama.cpp's llama-bench for Android")
    if rounds < 1:
        raise InputError(f"rounds: must be at least 1, not {rounds}")
    if not 0 < cool_c <= MOST_COOL_C:
        raise InputError(f"cool_c: must be above 0 and at most {MOST_COOL_C:g} °C, not {cool_c:g}")
    workload, usual_threads = usual_request(str(model), batch=None, prompt=prompt, new=new)
    if workload.new_tokens < 2:
        raise InputError("new: must be at least 2, because the first new token counts as part of the prefill")
    bench = Bench(
        program=Path(program),
        prompt=workload.prompt_tokens,
        new=workload.new_tokens,
        threads=threads or usual_threads,
    )
    phone = Phone(serial)
    reference = reference_model(RUNTIME)
    if reference is None:
        raise MeasurementError("the reference model for llama.cpp could not be written")
    with tempfile.TemporaryDirectory() as room:
        path, design = exported_file(str(model), Path(room), runtime=RUNTIME, weights=weights, workload=workload)
        question = [phone.serial, contents(path), contents(bench.program), bench.prompt, bench.new, bench.threads]
        kept = Rounds(data_folder() / "phones" / f"{digest(question)}.json")
        run_rounds(
            phone, bench, path, reference, kept, rounds=rounds, cool_c=cool_c, on_progress=on_progress, sleep=sleep
        )
        design = design or design_of_model(str(path), weights=weights)
    tests = _together([item["model"] for item in kept.done], name="llama-bench on the phone")
    [measurement] = measurements_of(tests, design, file="llama-bench on the phone")
    facts = phone.facts()
    references = _together([item["reference"] for item in kept.done], name="the reference model on the phone")
    found = replace(
        measurement,
        name=design.arch.name,
        device=facts.get("soc") or facts.get("model") or phone.serial,
        environment={
            **measurement.environment,
            "phone": facts,
            "reference_s": {"prompt" if test.n_prompt else "generation": test.samples_ns for test in references},
            "rounds": [{name: item[name] for name in ("cool", "before", "after")} for item in kept.done],
        },
    )
    if reasons := (*found.reasons, *_reasons(kept.done, references, cool_c)):
        found = replace(found, clean=False, reasons=reasons)
    if keep:
        MeasurementStore().add(found, design=design, source="measure on a phone")
    kept.path.unlink(missing_ok=True)
    return found


def _together(texts: list[object], *, name: str) -> list[BenchTest]:
    """Merges the tests of all rounds: each test then has the samples of all rounds."""
    rounds = [parse_llama_bench(str(text), name=name) for text in texts]
    first = rounds[0]
    samples = [tuple(sample for each in rounds for sample in each[i].samples_ns) for i in range(len(first))]
    return [replace(test, samples_ns=found) for test, found in zip(first, samples, strict=True)]


def _reasons(rounds: list[Mapping[str, object]], references: list[BenchTest], cool_c: float) -> Iterator[str]:
    """The reasons why the measurement is not clean."""
    if warm := [str(number) for number, item in enumerate(rounds, start=1) if not item["cool"]]:
        yield f"round {', '.join(warm)} began with the battery warmer than {cool_c:g} °C, or at an unknown temperature"
    spreads = [wide for test in references if (wide := spread(test.samples_ns)) is not None]
    yield from judge({"reference_spread": max(spreads, default=None)}).reasons
