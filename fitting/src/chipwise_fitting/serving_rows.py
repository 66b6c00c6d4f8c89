"""Predicts measured served runs with the serving model."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from chipwise.errors import Unsupported
from chipwise.model.arch.feed_forward import MixtureOfExperts
from chipwise.predict.served.groups import cost_groups, grouped
from chipwise_fitting.score import LeaveOut, Row, fold_of
from chipwise_fitting.served_runs import read_runs


def serving(truth: Path, leave_out: LeaveOut) -> list[Row]:
    """Predicts the rows of ``serving.csv``, each by kernel models and constants fitted without the row's group."""
    runs = read_runs(truth)
    found: dict[int, Row] = {
        i: Row(row_id=run.row_id, subset="unreadable", truth=run.tpot_s, predicted=None, problem=run.problem)
        for i, run in enumerate(runs)
    }
    places = [i for i, run in enumerate(runs) if run.request is not None]
    groups, errors = grouped([request for run in runs if (request := run.request) is not None])
    for i, error in errors.items():
        run = runs[places[i]]
        found[places[i]] = Row(
            row_id=run.row_id, subset="refused", truth=run.tpot_s, predicted=None, problem=str(error)
        )
    folds: dict[str | None, list[int]] = {}
    for g, group in enumerate(groups):
        folds.setdefault(fold_of(group.device.name, leave_out), []).append(g)
    for fold, members in folds.items():
        for g, cost in zip(members, cost_groups([groups[g] for g in members], fold=fold), strict=True):
            group = groups[g]
            mixture = any(isinstance(layer.ffn, MixtureOfExperts) for layer in group.setting.arch.layers)
            subset = f"{'moe' if mixture else 'dense'} {group.device.name}"
            for i, row in enumerate(group.rows):
                run = runs[places[row]]
                if isinstance(cost, Unsupported):
                    found[places[row]] = Row(
                        row_id=run.row_id, subset=subset, truth=run.tpot_s, predicted=None, problem=str(cost)
                    )
                    continue
                tpot, factor = float(cost.tpot_s[i]), float(np.exp(cost.log_halfwidth[i]))
                found[places[row]] = Row(
                    row_id=run.row_id,
                    subset=subset,
                    truth=run.tpot_s,
                    predicted=tpot,
                    low=tpot / factor,
                    high=tpot * factor,
                )
    return [found[i] for i in range(len(runs))]
