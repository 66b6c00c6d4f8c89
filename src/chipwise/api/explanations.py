"""Why a model takes what it takes, and what would change that."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chipwise.core.errors import InputError
from chipwise.core.files import read_json
from chipwise.hardware.device import MachineProfile
from chipwise.profile.kept import kept_profile
from chipwise.run.folder import PROMISES
from chipwise.spec import ArchSpec

if TYPE_CHECKING:
    from chipwise.explaining.answer import Explanation
    from chipwise.explaining.measured import MeasuredExplanation


def sensitivity(
    model: str | Path,
    text: str | Path,
    *,
    weights: str = "int8",
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[float, ...]:
    """Bits per byte that a text costs more with one layer at a time in a narrow format; what ``explain`` may be given.

    Args:
        model: A folder with weights and tokenizer, such as a winner's.
        text: A text file that the model was not trained on; a line an entry.
        weights: ``int8`` or ``int4``.
        progress: Told how many layers of how many are done.

    Raises:
        InputError: No weights, no tokenizer or no text.
        Unsupported: Another format.
    """
    from chipwise.training.sensitivity import folder_losses

    path = Path(text)
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read as text: {error}") from None
    return folder_losses(model, lines, weights, progress=progress)


def explain(
    model: str | Path | ArchSpec, *, device: str = "h100-sxm", threads: int = 1, every: bool = False, **asked: Any
) -> Explanation:
    """Why ``model`` takes what it takes on a chip, and what to change: verdict, waterfall, operators, priced advice.

    Args:
        model: As in :func:`estimate`.
        device: A data sheet, or ``here``: this machine, as it was calibrated.
        threads: Of this machine's runtime.
        every: Keep also advice that is no sure gain.
        **asked: ``runtime``, ``weights``, ``kv``, ``tp``, ``pp``, ``ep``, ``dp``, ``batch``, ``prompt``, ``new``;
            ``shared``, tokens of each prompt that all requests have in common; ``sensitivity``, the loss that each
            layer alone costs in a narrow format, as a list or a JSON file of one; ``train`` for one optimiser step over
            ``batch`` sequences of ``prompt`` tokens, and with it ``checkpoint``: whether activations are recomputed.

    Raises:
        InputError: ``here`` was not calibrated in this runtime.
        UnknownName: A name that is not known; the nearest are offered.
        SpecError: A plan that does not divide the model.
        Unsupported: The chip has no rate for a format, or the profile none for a block.
    """
    from chipwise.explaining.answer import explain_case
    from chipwise.explaining.asking import calibrated_case, data_sheet_case, read_sensitivity

    model = model if isinstance(model, ArchSpec) else str(model)
    names = {"prompt": "prompt_tokens", "new": "new_tokens", "shared": "shared_tokens"}
    asked = {names.get(name, name): value for name, value in asked.items()}
    if asked.pop("train", False):
        if device == "here":
            raise InputError("training on this machine is measured, not predicted: chipwise train")
        asked = {"runtime": "torch-compile", "task": "train"} | asked
    if "sensitivity" in asked:
        asked["sensitivity"] = read_sensitivity(asked["sensitivity"])
    if device != "here":
        return explain_case(data_sheet_case(model, device, **asked), every=every)
    runtime = asked.pop("runtime", "onnxruntime")
    asked["weights"] = asked.get("weights") or _weights_of_winner(model)
    return explain_case(calibrated_case(model, _kept_here(runtime, threads), **asked), every=every)


def _weights_of_winner(model: str | ArchSpec) -> str | None:
    """The weight format that a winner's folder was exported in; None of anything else."""
    if not isinstance(model, str) or not (Path(model) / PROMISES).is_file():
        return None
    return str(read_json(Path(model) / PROMISES)["weights"])


def _kept_here(runtime: str, threads: int) -> MachineProfile:
    """This machine's profile.

    Raises:
        InputError: There is none.
    """
    profile = kept_profile(runtime, threads)
    if profile is None:
        raise InputError(
            f"this machine was not calibrated in {runtime} with {threads} threads; run: chipwise calibrate "
            f"--runtime {runtime} --threads {threads}"
        )
    return profile


def explain_measured(model: str | ArchSpec, *, threads: int = 1, seed: int = 0, **asked: Any) -> MeasuredExplanation:
    """What ONNX Runtime's profiler sees of ``model`` on this machine, beside what calibration predicts.

    The arguments are those of :func:`explain`.

    Raises:
        InputError: This machine was not calibrated, or another runtime was asked for.
        Unsupported: The model cannot be exported.
    """
    from chipwise.explaining.asking import calibrated_case
    from chipwise.explaining.measured import measure_case

    asked = {{"prompt": "prompt_tokens", "new": "new_tokens"}.get(name, name): value for name, value in asked.items()}
    runtime = asked.pop("runtime", "onnxruntime")
    if runtime != "onnxruntime":
        raise InputError(f"--measured reads ONNX Runtime's profiler; {runtime} has none that is read here")
    profile = _kept_here(runtime, threads)
    return measure_case(calibrated_case(model, profile, **asked), threads=threads, seed=seed)
