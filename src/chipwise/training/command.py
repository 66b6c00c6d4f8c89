"""Training one model from its file to a Hugging Face folder: what ``chipwise train`` does.

::

    runs/train-small/
    ├── training.json   what is trained on what, and with which seed
    ├── corpus/         tokenizer and encoded text
    ├── state/          checkpoints, weights and results by budget
    └── model/          the Hugging Face folder, when the budget is spent
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chipwise.core import units
from chipwise.core.digest import digest
from chipwise.core.errors import InputError, SpecError, StudyError, UnitError, UnknownName
from chipwise.core.files import build, read_json, read_yaml, storage, write_atomic, write_json
from chipwise.deploy.hf import load_pretrained, save_pretrained
from chipwise.hardware import datasheet
from chipwise.spec import ArchSpec
from chipwise.spec.hf import resolve
from chipwise.spec.io import to_data
from chipwise.spec.plain import require_plain
from chipwise.training.data import SOURCES, Corpus, DataSpec, load_corpus
from chipwise.training.evaluate import load_model
from chipwise.training.extended import Means, Sign, joined, measured_peak, processes, rank, train_with
from chipwise.training.tasks import METHODS, TaskResult, evaluate_task, judge
from chipwise.training.tasks_baseline import baseline
from chipwise.training.tasks_classifier import FOLDER, Classifier
from chipwise.training.tasks_data import KINDS, load_task
from chipwise.training.tokenizer import LARGEST, SEPARATOR, SMALLEST, TokenData, TokenStore, load_tokenizer, load_tokens
from chipwise.training.trainer import Recipe, TrainResult

ABOUT = "training.json"
UNKNOWN_PEAK = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """A model to train: its architecture, and its weights and tokenizer where it has some."""

    arch: ArchSpec
    weights: Mapping[str, Any] | None = None
    tokenizer: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """What a finished training left."""

    folder: Path  # Hugging Face
    result: TrainResult
    tokens_per_s: float | None  # of this call, over all processes; None where nothing was left to do
    mfu: float | None
    peak: str  # where the peak of the MFU comes from


def train_model(
    spec: str | Path,
    *,
    data: Sequence[str | Path] | Mapping[str, Any] = ("medical-definitions",),
    steps: int | None = None,
    tokens: int | None = None,
    cpu_seconds: float | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    means: Means | None = None,
    peak: str | None = None,
    recipe: Recipe | None = None,
    seed: int = 0,
    progress: Callable[[Sign], None] | None = None,
    checkpoint_every_s: float = 30.0,
) -> Trained:
    """Trains a model for a budget and writes it as a Hugging Face folder.

    Args:
        spec: A spec file, a Hugging Face config or known name (random weights), or a folder with weights and tokenizer
            such as a winner's, to go on from.
        data: A text source, text files or globs, a run file (its ``data`` counts), or the fields of such.
        steps: Steps of the optimiser; one of ``steps``, ``tokens`` and ``cpu_seconds``.
        tokens: Tokens to learn from.
        cpu_seconds: CPU seconds of training, on one process.
        out: The folder; ``runs/train-<name>`` unless given.
        resume: Go on with what the folder holds, from its last checkpoint, or on to a larger budget.
        means: Device, precision, accumulation and so on.
        peak: Peak of one device for MFU: a rate, a chip's name (its data sheet), or ``unknown``; measured unless given.
        recipe: Batch, window, rates.
        seed: Of weights and order of the text.
        progress: Told about once a second.
        checkpoint_every_s: Seconds of training between checkpoints.

    Raises:
        InputError: The model, the text, the budget or the means are wrong.
        Unsupported: The model has blocks that are not trained here.
        StudyError: The folder holds another training, or one and ``resume`` is not given.
        TrainingDiverged: The loss was no longer finite; the last good state is kept.
    """
    means, recipe = means or Means(), recipe or Recipe()
    if sum(value is not None for value in (steps, tokens, cpu_seconds)) != 1:
        raise InputError("give one budget: --steps, --tokens or --cpu-seconds")
    for name, value in (("steps", steps), ("tokens", tokens), ("cpu-seconds", cpu_seconds)):
        if value is not None and not 0 < value < math.inf:
            raise InputError(f"--{name} must be positive, not {value}")
    origin = read_origin(spec)
    require_plain(origin.arch, work="trained")
    size = origin.arch.vocab_size
    if not SMALLEST <= size <= LARGEST:
        raise InputError(f"{spec}: its vocabulary of {size} tokens is not between {SMALLEST} and {LARGEST}")
    wanted, base = data_spec(data)
    target = Path(out) if out is not None else Path("runs") / f"train-{origin.arch.name.replace('/', '-')}"
    with joined(means) as joint:
        rate, said = peak_of(peak, joint)
        joint = dataclasses.replace(joint, peak_flops_per_s=rate)
        if rank() == 0:
            _claim(target, origin, wanted, seed, resume=resume)
        stream, tokenizer = _tokens(origin, wanted, base, target / "corpus")
        if tokens is not None:
            each = recipe.batch_windows * min(recipe.window_tokens, origin.arch.max_tokens)
            steps = math.ceil(tokens / (each * joint.accumulate * processes()))
        last: list[Sign] = []

        def heard(sign: Sign) -> None:
            last[:] = [sign]
            if progress is not None:
                progress(sign)

        result = train_with(
            origin.arch,
            stream,
            means=joint,
            steps=steps,
            cpu_budget_s=cpu_seconds,
            seed=seed,
            folder=target / "state",
            recipe=recipe,
            start=origin.weights,
            progress=heard,
            checkpoint_every_s=checkpoint_every_s,
        )
        if rank() == 0:
            from safetensors.numpy import load_file

            save_pretrained(origin.arch, load_file(result.weights), tokenizer, target / "model")
    return Trained(
        folder=target / "model",
        result=result,
        tokens_per_s=last[0].tokens_per_s if last else None,
        mfu=last[0].mfu if last else None,
        peak=said,
    )


def means_of(
    device: str | None, precision: Any, accumulate: int, *, recompute: bool = False, sharing: Any = "ddp"
) -> Means:
    """The means that options ask for; a GPU is used where there is one.

    Raises:
        InputError: An option is wrong, or there is no such device here.
    """
    import torch

    chosen = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if chosen.split(":")[0] not in ("cpu", "cuda"):
        raise InputError(f"--device is cpu or cuda, not {chosen!r}")
    if chosen != "cpu" and not torch.cuda.is_available():
        raise InputError("--device cuda: torch sees no GPU here; leave --device out, or install torch with CUDA")
    return Means(device=chosen, precision=precision, accumulate=accumulate, recompute=recompute, sharing=sharing)


def recipe_of(batch: int | None, window: int | None, rate: float) -> Recipe:
    """The recipe with another batch or window, and a share of its rates.

    Raises:
        InputError: An option is wrong.
    """
    plain = Recipe()
    if not 0 < rate < math.inf:
        raise InputError(f"--rate must be positive, not {rate:g}")
    try:
        return dataclasses.replace(
            plain,
            batch_windows=plain.batch_windows if batch is None else batch,
            window_tokens=plain.window_tokens if window is None else window,
            matrix_rate=plain.matrix_rate * rate,
            table_rate=plain.table_rate * rate,
        )
    except SpecError as error:
        option = {"batch_windows": "--batch", "window_tokens": "--window"}.get(error.field or "", error.field)
        raise InputError(f"{option} {error.message}") from None


def evaluate_folder(
    model: str | Path,
    task: str | Path,
    *,
    kind: Any = None,
    method: Any = None,
    with_baseline: bool = True,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[TaskResult, TaskResult | None]:
    """What the model in a folder reaches on a task, and what a bag of words does. See :func:`chipwise.api.evaluate`.

    Where the folder ships a classifier that was tuned on the very same items, it answers; a method asks anew.
    """

    for option, value, known in (("kind", kind, KINDS), ("method", method, METHODS)):
        if value is not None and value not in known:
            raise UnknownName(option, value, known)
    asked = load_task(task, kind=kind)
    shipped = Path(model) / FOLDER / asked.name
    if method is None and (shipped / "classifier.json").is_file():
        classifier = Classifier(shipped)
        if classifier.knows(asked):
            scores = classifier.scores([item.text for item in asked.test])
            reached = judge(asked, scores, method="tune", judged=f"shipped classifier: {classifier.judged}")
            return reached, baseline(asked) if with_baseline else None
    origin = read_origin(model)
    if origin.weights is None or origin.tokenizer is None:
        raise InputError(f"{model}: a task needs a folder with weights and tokenizer, such as a winner's")
    reached = evaluate_task(
        load_model(origin.arch, origin.weights),
        load_tokenizer(origin.tokenizer),
        asked,
        method=method,
        progress=progress,
    )
    return reached, baseline(asked) if with_baseline else None


def read_origin(spec: str | Path) -> Origin:
    """The model that ``spec`` names, with weights and tokenizer where its folder holds them.

    Raises:
        InputError: It cannot be read, or its tokenizer is not one that text is divided with here.
    """
    folder = Path(spec)
    if not folder.is_dir() or not any(folder.glob("model*.safetensors")):
        return Origin(arch=resolve(spec))
    arch, weights = load_pretrained(folder)
    path = folder / "tokenizer.json"
    if not path.exists():
        raise SpecError("its weights need its tokenizer.json, which is not there", file=str(folder))
    model = read_json(path)
    special = {token.get("content"): token.get("id") for token in model.get("added_tokens", [])}
    if special.get(SEPARATOR) != 0:
        raise InputError(f"{path}: texts are divided by the token {SEPARATOR!r} with number 0, which it does not have")
    return Origin(arch=arch, weights=weights, tokenizer=path)


def data_spec(data: Sequence[str | Path] | Mapping[str, Any]) -> tuple[DataSpec, Path]:
    """The text that is meant, and the folder that its paths start from.

    Raises:
        SpecError: A run file without ``data``, or a wrong field.
    """
    if isinstance(data, Mapping):
        return build(DataSpec, data, field="data"), Path()
    names = [str(item) for item in ([data] if isinstance(data, str | Path) else data)]
    if len(names) == 1 and names[0].endswith((".yaml", ".yml")):
        held = read_yaml(names[0]).get("data")
        if held is None:
            raise SpecError("this field is missing; name text files instead, or a source", file=names[0], field="data")
        return build(DataSpec, held, field="data", file=names[0]), Path(names[0]).resolve().parent
    if len(names) == 1 and names[0] in SOURCES.names():
        return DataSpec(source=names[0]), Path()
    if len(names) == 1 and not any(sign in names[0] for sign in "./*?[\\") and not Path(names[0]).exists():
        raise UnknownName("text source", names[0], [*SOURCES.names(), "or text files, or a run file"])
    return DataSpec(source="files", paths=tuple(names)), Path()


def peak_of(text: str | None, means: Means) -> tuple[float | None, str]:
    """FLOP/s of one device for matrix products in the training's format, and where the figure comes from.

    Raises:
        InputError: Neither a rate nor a chip.
        Unsupported: The chip's data sheet has no rate for the format.
    """
    form = "bf16" if str(means.dtype) == "torch.bfloat16" else "fp32"
    if text == UNKNOWN_PEAK:
        return None, "unknown peak"
    if text is None:
        rate = measured_peak(means.device, means.dtype)
        return rate, "unknown peak" if rate is None else f"measured: the best of five large {form} products here"
    try:
        return units.parse(text, "compute"), "as stated"
    except UnitError:
        if text not in datasheet.names():
            raise InputError(
                f"--peak {text!r} is neither a rate such as 989 TFLOP/s nor a chip of chipwise devices"
            ) from None
    return datasheet.load(text).peak(form), f"data sheet of {text}, {form}"


def _claim(target: Path, origin: Origin, data: DataSpec, seed: int, *, resume: bool) -> None:
    """Makes the folder this training's own, or finds that it is."""
    about = {
        "arch": to_data(origin.arch),
        "data": digest(data),
        "seed": seed,
        "from_weights": origin.weights is not None,
    }
    path = target / ABOUT
    if path.exists():
        if read_json(path) != about:
            raise StudyError(
                f"{target}: this folder holds another training (model, text or seed); choose another --out"
            )
        if not resume:
            raise StudyError(f"{target}: this folder already holds this training; go on with --resume, or choose --out")
        return
    with storage(target):
        target.mkdir(parents=True, exist_ok=True)
    write_json(path, about)


def _tokens(origin: Origin, wanted: DataSpec, base: Path, folder: Path) -> tuple[TokenData, Path]:
    """The text in the model's tokens and its tokenizer's file; the first process makes them, the others wait."""
    size = origin.arch.vocab_size
    store = TokenStore(Corpus(name="", train=(), validation=(), source="", licence="", duplicates=0), folder, [size])
    if rank() == 0:
        store = TokenStore(load_corpus(wanted, base=base), folder, [size])
        if origin.tokenizer is not None and not store.tokenizer_path(size).exists():
            write_atomic(store.tokenizer_path(size), origin.tokenizer.read_bytes())
        store.prepare()
    if processes() > 1:
        from torch import distributed

        distributed.barrier()
    return load_tokens(store.tokens_path(size)), store.tokenizer_path(size)
