"""Predicts runs of vLLM under load by replaying its scheduler with predicted step times, and fits the constants.

Only the load of a run is used to predict it; constants are fitted to runs of other models. There are six constants: two
for the time of a request outside the engine, a factor on the steps of mixtures of experts, and three rates of requests
for the two lighter workloads, which no run states. Dense models and the scheduler itself have no fitted constants.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from chipwise.core.csvfile import write_rows
from chipwise.errors import ChipwiseError, SpecError
from chipwise.model.arch.feed_forward import MixtureOfExperts
from chipwise.model.published.read import resolve
from chipwise.predict.load.engine import Served
from chipwise.predict.load.fleet import Pool, Replica, replica, serve
from chipwise.predict.load.policy import Policy
from chipwise.predict.served.deployment import Deployment
from chipwise.predict.served.request import Request
from chipwise_fitting import load_runs
from chipwise_fitting.load_runs import METRICS, Experiment, Recorded
from chipwise_fitting.score import Row

LIGHTER = {"general-lite": (2.5, 6.0), "reasoning-lite": (1.5,)}
"""Requests per second by stage of the workloads whose rates no run states.

The second rate of general-lite is 2.4 times the first. This ratio follows from the weights of the two stages in the
table's row for both stages. The rates are round numbers, chosen so that replays of these runs are consistent with other
runs of the same models.
"""
PUBLISHED = """\
published figures, for different rows: BLIS (fitted on H100; median error, H100) end to end 6.7 %, its P99 9.2 %, \
TTFT 17.6 %, its P99 29 %; A100 15.7 %, L40S 13.3 % end to end (devices not seen); over its own 38 runs 11.8 % end to \
end, 22.8 % TTFT, all answered. Of those 38 runs LLM-Optimizer answers 36, AIConfigurator 19, Vidur 4, LLMServingSim 1 \
(github.com/inference-sim/inference-sim, pull request 944). AIConfigurator's planner: 30 % in time per token, 76 % in \
TTFT (its first public campaign)."""
SEED = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Constants:
    """Constants of runs under load: seconds of a request outside the engine, and a factor on the steps of mixtures.

    ``request_s`` passes before a request is scheduled; ``jitter_s`` is the mean of an exponential delay of the answer.
    """

    request_s: float = 0.003
    jitter_s: float = 0.002
    mixture: float = 0.87
    half_width: float = 0.2  # half-width of 90 % intervals, in logarithms


FITTED = Constants()
"""Constants fitted to all runs of the table; used for runs that are not in the table."""


def load(truth: Path, out: Path) -> list[Row]:
    """Predicts the runs in the folder ``truth``, writes the predictions to ``out`` and returns a row for each metric.

    Raises:
        SpecError: The folder holds none of the three tables, or one lacks a column.
    """
    if not truth.is_dir():
        raise SpecError(
            "must be the folder that holds load_runs.csv, load_percentiles.csv or requests/", file=str(truth)
        )
    stated = load_runs.runs(truth)
    experiments = [*stated, *load_runs.percentiles(truth, stated, LIGHTER)]
    single = load_runs.recorded(truth)
    if not experiments and not single:
        raise SpecError("holds neither load_runs.csv nor load_percentiles.csv nor requests/", file=str(truth))
    plain = {run.name: _predicted(run, FITTED_WITHOUT_FACTORS) for run in experiments}
    rows: list[Row] = []
    lines: list[dict[str, object]] = []
    for run in experiments:
        constants = fitted([other for other in experiments if other.model != run.model], plain)
        found = _predicted(run, constants)
        for (stage, metric), truth_s in run.measured.items():
            value = None if isinstance(found, str) else found.get((stage, metric))
            low, high = _interval(value, constants)
            subset = f"{run.source}, {run.device}, {metric}"
            rows.append(
                Row(
                    row_id=f"{run.name} {stage} {metric}",
                    subset=subset,
                    truth=truth_s,
                    predicted=value,
                    low=low,
                    high=high,
                    problem=found
                    if isinstance(found, str)
                    else ""
                    if value
                    else f"no load is known for {run.workload}",
                )
            )
            lines.append(_line(run.name, stage, metric, value, low, high))
    for each in single:
        own = fitted([other for other in experiments if other.model != each.model], plain)
        rows += _recorded_rows(each, own, lines)
    unique = {(line["experiment"], line["stage"], line["metric"]): line for line in lines if line["value"] is not None}
    write_rows(
        out,
        list(unique.values()),  # a run may be in both tables
        ("experiment", "stage", "metric", "value", "low_value", "high_value"),
    )
    return rows


def _line(
    name: str, stage: object, metric: str, value: float | None, low: float | None, high: float | None
) -> dict[str, object]:
    return {
        "experiment": name, "stage": stage, "metric": metric, "value": value, "low_value": low, "high_value": high,
    }  # fmt: skip


def _interval(value: float | None, constants: Constants) -> tuple[float | None, float | None]:
    if value is None:
        return None, None
    return value * float(np.exp(-constants.half_width)), value * float(np.exp(constants.half_width))


FITTED_WITHOUT_FACTORS = Constants(mixture=1.0)


def fitted(others: Sequence[Experiment], plain: dict[str, dict[tuple[int, str], float] | str]) -> Constants:
    """Fits constants to runs that were not overloaded: medians of measured over replayed times.

    Args:
        others: Runs of models other than the predicted one.
        plain: Each run's replayed times without factors, or why it could not be replayed.

    With fewer than four measured stages of mixtures of experts, the shipped factor is used.
    """
    ratios: list[float] = []
    misses = []
    for run in others:
        found = plain[run.name]
        if isinstance(found, str):
            continue
        for (stage, metric), truth_s in run.measured.items():
            value = found.get((stage, metric))
            if value is None or stage < 0 or run.measured.get((stage, "ttft_mean"), 0.0) > 1.0:
                continue
            if metric == "itl_mean" and is_mixture(run.model):
                ratios.append(truth_s / value)
            misses.append(abs(np.log(truth_s / value)))
    mixture = float(np.median(ratios)) if len(ratios) >= 4 else FITTED.mixture
    width = float(np.quantile(misses, 0.9)) if len(misses) >= 20 else FITTED.half_width
    return replace(FITTED, mixture=mixture, half_width=width)


def is_mixture(model: str) -> bool:
    """Whether a model has experts; False for an unknown model."""
    try:
        arch = resolve(model)
    except ChipwiseError:
        return False
    return any(isinstance(layer.ffn, MixtureOfExperts) for layer in arch.layers)


def _predicted(run: Experiment, constants: Constants) -> dict[tuple[int, str], float] | str:
    """Maps (stage, metric) to seconds (stage -1: all stages together), or returns why they cannot be predicted."""
    if not run.stages:
        return f"no load is known for the workload {run.workload!r}"
    asked = Request(
        model=run.model, deployment=Deployment(device=run.device, tp=run.tp, runtime="vllm", weights=run.weights)
    )
    policy = Policy(
        most_tokens=run.most_tokens,
        most_sequences=run.most_sequences,
        lookahead=1,
        request_s=constants.request_s,
        jitter_s=constants.jitter_s,
        timeout_s=load_runs.TIMEOUT_S,
    )
    try:
        served, stages = _served(run, asked, policy, constants)
    except ChipwiseError as error:
        return str(error)
    found: dict[tuple[int, str], float] = {}
    for stage in (-1, *run.stages):
        chosen = served.done & ((stages == stage) | (stage < 0))
        if chosen.any():
            counted = [run.stages[each].outputs[0] for each in run.stages if stage in (each, -1)]
            weights = [run.stages[each].requests for each in run.stages if stage in (each, -1)]
            tokens = float(np.average(counted, weights=weights))
            found |= {(stage, name): value for name, value in _metrics(served, chosen, tokens).items()}
    return found


def _served(run: Experiment, asked: Request, policy: Policy, constants: Constants) -> tuple[Served, np.ndarray]:
    made, stages = load_runs.load_of(run, seed=SEED)
    copy = slowed(replica(asked, policy=policy, longest=made.longest), _factor(run.model, constants))
    return serve(made, Pool(replica=copy, replicas=run.dp)), stages


def _factor(model: str, constants: Constants) -> float:
    return constants.mixture if is_mixture(model) else 1.0


def slowed(copy: Replica, factor: float) -> Replica:
    """Returns a replica whose steps all take ``factor`` times as long."""
    return replace(copy, table=copy.table.scaled(factor))


def _metrics(served: Served, chosen: np.ndarray, tokens: float) -> dict[str, float]:
    """Computes metrics of the chosen requests; time per token uses the ``tokens`` that clients count in an answer."""
    ttft = (served.first_s - served.arrival_s)[chosen]
    e2e = (served.last_s - served.arrival_s)[chosen]
    after = max(tokens - 1, 1.0)
    values = {"itl_mean": float(e2e.mean() - ttft.mean()) / after}
    for name, seconds in (("e2e", e2e), ("ttft", ttft)):
        values[f"{name}_mean"] = float(seconds.mean())
        for statistic, share in (("p90", 0.9), ("p99", 0.99)):
            values[f"{name}_{statistic}"] = float(np.quantile(seconds, share))
    return {name: values[name] for name in METRICS}


def _recorded_rows(run: Recorded, constants: Constants, lines: list[dict[str, object]]) -> list[Row]:
    """Predicts TTFT and end-to-end time of every request of a recorded run, and their percentiles."""
    asked = Request(
        model=run.model,
        deployment=Deployment(device=run.device, tp=run.tp, runtime="vllm"),
        batch=min(run.most_sequences, 64),
        prompt_tokens=int(run.load.prompt_tokens.mean()),
        new_tokens=int(run.load.new_tokens.mean()),
    )
    policy = Policy(most_tokens=run.most_tokens, most_sequences=run.most_sequences, lookahead=1)
    problem = ""
    served = None
    width = constants.half_width
    try:
        copy = slowed(replica(asked, policy=policy, longest=run.load.longest), _factor(run.model, constants))
        if run.cache_tokens:
            copy = replace(copy, cache_tokens=float(run.cache_tokens))
        served = serve(run.load, Pool(replica=copy, replicas=run.dp))
        width = max(width, copy.table.decode_halfwidth)
    except ChipwiseError as error:
        problem = str(error)
    chosen = replace(constants, half_width=width)
    rows = []

    def add(stage: object, metric: str, truth_s: float, value: float | None, subset: str) -> None:
        low, high = _interval(value, chosen)
        lines.append(_line(run.name, stage, metric, value, low, high))
        rows.append(
            Row(
                row_id=f"{run.name} {stage} {metric}", subset=subset, truth=truth_s, predicted=value, low=low,
                high=high, problem=problem,
            )
        )  # fmt: skip

    for name, truths in (("e2e", run.e2e_s), ("ttft", run.ttft_s)):
        found = None if served is None else (served.last_s if name == "e2e" else served.first_s) - served.arrival_s
        for i, truth_s in enumerate(truths):
            value = None if found is None else float(found[i])
            add(run.identities[i], name, float(truth_s), value, f"requests/{run.name}, {name} of each request")
        for statistic, share in (("mean", None), ("p99", 0.99)):
            both = [
                None if each is None else float(each.mean() if share is None else np.quantile(each, share))
                for each in (truths, found)
            ]
            assert both[0] is not None
            add(-1, f"{name}_{statistic}", both[0], both[1], f"requests/{run.name}, {name}_{statistic}")
    return rows
