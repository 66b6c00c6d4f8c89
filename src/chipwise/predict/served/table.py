"""Estimates for whole tables: each row gets an estimate, or the reason why there is none.

Rows with the same model, device, runtime, formats and plan are estimated together.
"""

from __future__ import annotations

import contextlib
import gc
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from chipwise.core.csvfile import read_rows, whole, write_rows
from chipwise.core.files import check_output
from chipwise.errors import ChipwiseError, SpecError, Unsupported, short
from chipwise.predict.served.deployment import Deployment
from chipwise.predict.served.energy import Energies, energies
from chipwise.predict.served.estimate import bound_of, priced, waiting
from chipwise.predict.served.groups import GroupCost
from chipwise.predict.served.plan import node_plan
from chipwise.predict.served.request import IMAGE_SIZE, Request, listening, problem_of, taken_for
from chipwise.predict.served.shortage import shortage_text

_COLUMN = {"prompt_tokens": "isl", "new_tokens": "osl"}  # columns whose names differ from a request's fields
ASKED = ("row_id", "model", "device", "runtime", "weights", "kv", "tp", "pp", "ep", "dp", "batch", "isl", "osl")
ALSO_ASKED = ("images", "image_size", "audio_s")
"""Columns for images and sound per request; written only if the table has them."""
ANSWERED = (
    "ttft_s",
    "tpot_s",
    "low_s",
    "high_s",
    "peak_memory_bytes",
    "joules_per_token",
    "usd_per_1k_tokens",
    "usd_per_1k_input_tokens",
    "usd_per_1k_output_tokens",
    "bound",
    "provenance",
    "error",
)
Other = Callable[[Mapping[str, str]], Mapping[str, object] | None]
BLOCK = 32_768  # rows estimated at once


def estimate_file(
    path: Path,
    out: Path,
    *,
    fold: str | None = None,
    progress: Callable[[int, int], None] | None = None,
    other: Other | None = None,
) -> tuple[int, int]:
    """Writes the rows of the CSV file ``path`` with their estimates to ``out``.

    The output has the columns of the request, then all other columns of the table, then the columns of the estimate.
    ``other`` estimates rows whose models are predicted by formulas that were fitted to whole runs. Returns the number
    of rows, and the number of rows with an error.

    Raises:
        SpecError: The file cannot be read as a table, or lacks a column.
        StorageError: ``out`` cannot be written.
    """
    check_output(out, source=path)
    rows = read_rows(path, required=("model", "device"), without=ANSWERED, optional=(*ASKED, *ALSO_ASKED))
    own = [name for name in rows[0] if name not in ASKED]
    answers: list[dict[str, object]] = []
    for start in range(0, len(rows), BLOCK):
        with _no_collection():
            answers += estimate_rows(rows[start : start + BLOCK], fold=fold, other=other)
        if progress is not None:
            progress(len(answers), len(rows))
    write_rows(out, answers, (*ASKED, *own, *ANSWERED))
    return len(rows), sum(1 for row in answers if row["error"])


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Pauses the cyclic garbage collector, which would take 1/6 of the time without freeing anything."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()


def estimate_rows(
    rows: Sequence[Mapping[str, str]], *, fold: str | None = None, other: Other | None = None
) -> list[dict[str, object]]:
    """The rows in order, with their estimates. ``error`` is the reason why a row has no estimate, or empty."""
    answers: list[dict[str, object]] = [{**row, "error": ""} for row in rows]
    requests: list[Request] = []
    places: list[int] = []
    for i, row in enumerate(rows):
        if other is not None and (told := other(row)) is not None:
            answers[i] |= told
            continue
        try:
            requests.append(request_of(row))
            places.append(i)
        except ChipwiseError as error:
            answers[i]["error"] = problem_of(error)
    _answer(answers, requests, places, fold=fold)
    return answers


def _answer(
    answers: list[dict[str, object]], requests: Sequence[Request], places: Sequence[int], *, fold: str | None
) -> None:
    """Writes the estimate, or the error, of each of ``requests`` into its row of ``answers``."""
    costs, errors, lacking = priced(requests, fold=fold)
    for i, problem in errors.items():
        answers[places[i]]["error"] = problem_of(problem)
    for i, (group, memory, place) in lacking.items():
        needed = round(float(memory.peak_bytes[place]))
        answers[places[i]] |= {"error": shortage_text(group, memory, place), "peak_memory_bytes": needed}
    for cost, energy in zip(costs, energies(costs), strict=True):
        _fill(answers, [places[i] for i in cost.group.rows], cost, energy)
        for i, fits in zip(cost.group.rows, cost.group.in_flight.tolist(), strict=True):
            row, request = answers[places[i]], requests[i]
            if fits < request.batch:
                row["provenance"] = f"{row['provenance']}; {waiting(fits, request.batch)}"
            for said in taken_for(request.model, request.device):
                row["provenance"] = f"{row['provenance']}; {said}"


def request_of(row: Mapping[str, str]) -> Request:
    """Reads a row as a request.

    Raises:
        SpecError: A cell is missing or not a whole number.
    """
    for name in ("model", "device"):
        if not row.get(name):
            raise SpecError("is empty", field=name)
    tp, dp, ep = node_plan(*(whole(row, name, default=1) for name in ("tp", "dp", "ep")))
    try:
        return _request(row, tp, dp, ep)
    except SpecError as error:
        raise SpecError(error.message, field=_COLUMN.get(error.field or "", error.field)) from None


def _request(row: Mapping[str, str], tp: int, dp: int, ep: int) -> Request:
    model, heard = listening(row["model"], _seconds(row))
    return Request(
        model=model,
        deployment=Deployment(
            device=row["device"],
            runtime=row.get("runtime") or None,
            weights=row.get("weights") or None,
            kv=row.get("kv") or None,
            tp=tp,
            pp=whole(row, "pp", default=1),
            ep=ep,
            dp=dp,
        ),
        batch=whole(row, "batch", default=1),
        prompt_tokens=whole(row, "isl", default=None),
        new_tokens=whole(row, "osl", default=None),
        images=whole(row, "images", default=0),
        image_size=_size(row),
        audio_s=heard,
    )


def _seconds(row: Mapping[str, str]) -> float | None:
    """Seconds of sound per request; None if the cell is empty."""
    if not (text := row.get("audio_s")):
        return None
    try:
        return float(text)
    except ValueError:
        raise SpecError(f"must be a number of seconds, not {short(text)}", field="audio_s") from None


def _size(row: Mapping[str, str]) -> tuple[int, int]:
    """Width and height of a request's images in pixels."""
    text = row.get("image_size")
    if not text:
        return IMAGE_SIZE
    found = re.fullmatch(r"(\d{1,6})[xX×](\d{1,6})", text)
    if found is None:
        raise SpecError(f"must be a width and a height such as 1024x768, not {short(text)}", field="image_size")
    return int(found[1]), int(found[2])


def _fill(
    answers: list[dict[str, object]],
    places: Sequence[int],
    cost: GroupCost,
    energy: Energies | Unsupported,
) -> None:
    generates = cost.group.generates  # a text encoder has no TPOT; the interval is that of its pass
    factor = np.exp(cost.log_halfwidth)
    try:
        rate = cost.group.device.price_usd_per_s * cost.group.setting.plan.devices
    except Unsupported:
        rate = None
    tokens_per_s = cost.tokens_per_s
    prices = None if rate is None else cost.usd_per_token(rate)
    peak = cost.memory.peak_bytes
    bounds = bound_of(cost.decode)
    for i, place in enumerate(places):
        seconds = float(cost.tpot_s[i] if generates else cost.prefill_s[i])
        answers[place] |= {
            "ttft_s": f"{cost.prefill_s[i]:.6g}",
            "tpot_s": f"{seconds:.6g}" if generates else "",
            "low_s": f"{seconds / factor[i]:.6g}",
            "high_s": f"{seconds * factor[i]:.6g}",
            "peak_memory_bytes": round(float(peak[i])),
            "joules_per_token": "" if isinstance(energy, Unsupported) else f"{energy.token_j[i]:.4g}",
            "usd_per_1k_tokens": "" if rate is None else f"{1000 * rate / tokens_per_s[i]:.4g}",
            "usd_per_1k_input_tokens": "" if prices is None else f"{1000 * prices[0][i]:.4g}",
            "usd_per_1k_output_tokens": "" if prices is None or not generates else f"{1000 * prices[1][i]:.4g}",
            "bound": bounds[i].value,
            "provenance": cost.provenance,
        }
