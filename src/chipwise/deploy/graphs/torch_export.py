"""Exports PyTorch modules to ONNX by tracing them on example inputs."""

from __future__ import annotations

import contextlib
import inspect
import io
import logging
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from chipwise.core.python_files import failure, named_object, users_code
from chipwise.deploy.graphs.inputs import Feed, Shapes, read_arrays
from chipwise.deploy.graphs.modules import Inputs, Module
from chipwise.errors import InputError, SpecError, UnknownName, line_of, listed, short

OPSET = 17
WHOLE = re.compile(r"ids?$|idx|ind(ex|ices)|mask|tokens?$|labels?$|lengths?$")  # arguments that are whole numbers
BRANCH = "Python boolean"  # in the tracer's warning about a branch on a tensor
DEPENDS = re.compile(r"data-dependent|dynamic control flow", re.IGNORECASE)


def exported(
    model: str | Module | Path,
    folder: Path,
    *,
    inputs: str | Path | Inputs | None,
    shapes: Shapes,
    values: Mapping[str, float],
) -> tuple[str, Path, Feed, dict[str, float]]:
    """Exports a module, or the module of the given name, into ``folder``.

    Args:
        model: A module, or the name of a module or of a function that returns one, such as ``package.module:build``.
        folder: Where the file is written.
        inputs: The arguments of ``forward`` in order or by name, or a ``.npz`` file with an array for each.
        shapes: Instead of ``inputs``: the shapes of tensor arguments, whose values are generated.
        values: Arguments that are numbers. If an argument also has a shape, its tensor is filled with the number.

    Returns:
        The model's name, the file, an example for each of the file's inputs, and the ``values`` of the file's inputs.

    Raises:
        InputError: The module cannot be imported, run on these inputs or exported.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # so that weights drawn by the user's function are always the same
        if isinstance(model, str | Path):
            name, module = str(model), module_named(str(model))
            stem = re.sub(r"^.*/|\.py(?=:)", "", name).replace(":", ".")
        else:
            name = stem = type(model).__name__
            module = _as_module(model, name)
        if inputs is not None and shapes:
            raise InputError(f"{name}: give the shapes of its inputs, or examples (inputs), not both")
        if isinstance(inputs, str | Path):
            inputs = dict(read_arrays(inputs))
        if inputs is None:
            inputs = _made(module, name, shapes, values)
        path = folder / f"{stem}.onnx"
        feed = export_module(module, inputs, path, name=name)
    return name, path, feed, {key: value for key, value in values.items() if key in feed}


def module_named(name: str) -> nn.Module:
    """The module that a name such as ``package.module:name`` refers to.

    If the name refers to a function, the function is called without arguments and must return the module.

    Raises:
        InputError: The name cannot be imported, its code fails, or it is neither a module nor such a function.
    """
    found = named_object(name)
    if not isinstance(found, nn.Module):
        if not callable(found):
            raise InputError(f"{name} is {_a(found)}, neither a torch.nn.Module nor a function that returns one")
        code = getattr(found, "__code__", None)
        with users_code(name if code is None else Path(code.co_filename).name):
            found = found()
    return _as_module(found, f"{name}()")


def _as_module(found: object, name: str) -> nn.Module:
    if not isinstance(found, nn.Module):
        raise InputError(f"{name} is {_a(found)}, not a torch.nn.Module")
    return found


def _a(found: object) -> str:
    return f"{short(found)} ({type(found).__name__})"


def arguments_of(module: nn.Module) -> str:
    """The arguments of ``forward`` as text, such as ``x, mask=None``."""
    parameters = inspect.signature(module.forward).parameters.values()
    return ", ".join(str(each.replace(annotation=inspect.Parameter.empty)) for each in parameters)


def _made(module: nn.Module, name: str, shapes: Shapes, values: Mapping[str, float]) -> dict[str, object]:
    """Generates arguments: normal random numbers, or zeros (ones for masks) if name or annotation imply integers."""
    parameters = inspect.signature(module.forward).parameters
    named = {key: each for key, each in parameters.items() if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)}
    open_ended = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    for key in (*shapes, *values):
        if key not in named and not open_ended:
            raise UnknownName(f"argument of {name}", key, named)
    missing = [key for key, each in named.items() if each.default is each.empty and key not in {*shapes, *values}]
    if missing or not shapes:
        example = missing[0] if missing else next(iter(named), "x")
        raise InputError(
            f"{name}: forward({arguments_of(module)}) needs inputs; give a shape for each tensor, such as --shape "
            f"{example}=1,3,224,224 (shapes), a number with --value, or examples (inputs) in Python"
        )
    own = next((each.dtype for each in module.parameters() if each.is_floating_point()), torch.get_default_dtype())
    made: dict[str, object] = {}
    for key, shape in shapes.items():
        hint = str(named[key].annotation) if key in named else ""
        whole = WHOLE.search(key.lower()) is not None or "LongTensor" in hint or "IntTensor" in hint
        filled = values.get(key, 1 if "mask" in key.lower() else 0 if whole else None)
        made[key] = (
            torch.randn(shape, dtype=own)
            if filled is None
            else torch.full(shape, filled, dtype=torch.int64 if whole else own)
        )
    numbers = {key: value for key, value in values.items() if key not in shapes}
    made |= {key: int(value) if value == int(value) else value for key, value in numbers.items()}
    if any(isinstance(each, nn.Embedding) for each in module.modules()) and not any(map(_is_whole, made.values())):
        try:
            with _evaluating(module), torch.no_grad():
                module(**made)
        except Exception:  # torch raises errors of many kinds: the embedding reads whole numbers
            return {
                key: torch.zeros(each.shape, dtype=torch.int64) if isinstance(each, Tensor) else each
                for key, each in made.items()
            }
    return made


def _is_whole(value: object) -> bool:
    return isinstance(value, Tensor) and not value.is_floating_point()


def export_module(module: nn.Module, inputs: Inputs, path: Path, *, name: str | None = None) -> Feed:
    """Writes a module as an ONNX file for inputs of these shapes; returns the file's inputs as arrays, by name.

    The module is traced in evaluation mode. Arguments that are neither tensors nor arrays become constants in the file.

    Raises:
        InputError: The module fails on these inputs, its outputs are not finite, it branches on its data, or torch
            cannot export an operator.
    """
    name = name or type(module).__name__
    if isinstance(module, torch.jit.ScriptModule):
        raise InputError(f"{name}: TorchScript cannot be exported; give the torch.nn.Module from which it was created")
    given = _given(module, inputs, name)
    positional = 0 if isinstance(inputs, Mapping) else len(inputs)
    tensors = dict(_named_tensors(given))
    if not tensors:
        raise SpecError(f"{name}: none of its inputs is a tensor or an array", field="inputs")
    _check_devices(module, tensors, name)
    forward = module.forward

    def flat(*values: Tensor) -> tuple[Tensor, ...]:
        """Calls ``forward``; takes and returns only tensors, because a graph has no other inputs or outputs."""
        left = iter(values)
        new = [_mapped(each, lambda leaf: next(left) if isinstance(leaf, Tensor) else leaf) for each in given.values()]
        args, kwargs = new[:positional], dict(zip(list(given)[positional:], new[positional:], strict=True))
        return tuple(_tensors_of(forward(*args, **kwargs)))

    with _evaluating(module), torch.no_grad(), _quiet(), warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            outputs = flat(*tensors.values())
        except Exception as error:  # the user's code
            asked = ", ".join(f"{key} {tuple(each.shape)}" for key, each in tensors.items())
            raise InputError(f"{name}: forward({arguments_of(module)}) fails on {asked}: {failure(error)}") from error
        if not outputs:
            raise InputError(f"{name}: its outputs are not tensors; forward must return at least one tensor")
        if not all(bool(each.isfinite().all()) for each in outputs if each.is_floating_point()):
            raise InputError(f"{name}: its outputs on these inputs are not finite (NaN or infinity); give other inputs")
        vars(module)["forward"] = flat
        try:
            export: Callable[..., object] = torch.onnx.export
            export(
                module, tuple(tensors.values()), str(path), input_names=list(tensors), opset_version=OPSET, dynamo=False
            )
        except Exception as error:  # torch raises errors of many kinds
            raise InputError(f"{name} cannot be exported to ONNX: {failure(error)}") from error
        finally:
            del vars(module)["forward"]
            if module.forward != forward:
                vars(module)["forward"] = forward
        branches = [each for each in warned if BRANCH in str(each.message)]
        if branches:
            where = f"{Path(branches[0].filename).name}:{branches[0].lineno}"
            _check_branches(module, given, positional, f"{name} ({where})")
    return {key: each.detach().cpu().numpy() for key, each in tensors.items()}


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Suppresses what torch prints and logs while it exports; errors carry the same information."""
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(disabled)


@contextlib.contextmanager
def _evaluating(module: nn.Module) -> Iterator[None]:
    """Sets evaluation mode, and turns off the fast path of attention, a separate operator that ONNX lacks."""
    was_training = [each for each in module.modules() if each.training]
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    module.train(False)
    try:
        yield
    finally:
        for each in was_training:
            each.training = True
        torch.backends.mha.set_fastpath_enabled(fast)


def _given(module: nn.Module, inputs: Inputs, name: str) -> dict[str, object]:
    """The arguments by name, in their order, with arrays as tensors."""
    signature = inspect.signature(module.forward)
    args, kwargs = ((), dict(inputs)) if isinstance(inputs, Mapping) else (tuple(inputs), {})
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        raise SpecError(f"{name} takes forward({arguments_of(module)}): {error}", field="inputs") from None
    parameters = list(signature.parameters.values())
    ordered = [each.name for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    several = next((each.name for each in parameters if each.kind is each.VAR_POSITIONAL), "x")
    ordered += [f"{several}_{i}" for i in range(len(args) - len(ordered))]
    return {key: _mapped(value, _as_tensor) for key, value in (*zip(ordered, args, strict=False), *kwargs.items())}


def _mapped(value: object, change: Callable[[object], object]) -> object:
    """``value`` with ``change`` applied to the contents of its mappings, lists and tuples."""
    if isinstance(value, Mapping):
        return {key: _mapped(each, change) for key, each in value.items()}
    if isinstance(value, list | tuple):
        held = [_mapped(each, change) for each in value]
        return held if isinstance(value, list) else tuple(held)
    return change(value)


def _as_tensor(value: object) -> object:
    return torch.as_tensor(np.asarray(value)) if isinstance(value, np.ndarray | np.generic) else value


def _named_tensors(value: object, name: str = "") -> Iterator[tuple[str, Tensor]]:
    """Each tensor of nested arguments with the path to it, such as ``batch_x``."""
    if isinstance(value, Tensor):
        yield name, value
    elif isinstance(value, Mapping):
        for key, each in value.items():
            yield from _named_tensors(each, f"{name}_{key}" if name else str(key))
    elif isinstance(value, list | tuple):
        yield from _named_tensors(dict(enumerate(value)), name)


def _tensors_of(outputs: object) -> Iterator[Tensor]:
    """Lists the tensors of nested outputs; caches and other objects are left out, as a graph cannot return them."""
    if isinstance(outputs, Tensor):
        yield outputs
        return
    for each in (
        outputs.values() if isinstance(outputs, Mapping) else outputs if isinstance(outputs, list | tuple) else ()
    ):
        yield from _tensors_of(each)


def _check_devices(module: nn.Module, tensors: Mapping[str, Tensor], name: str) -> None:
    weights = {str(each.device) for each in (*module.parameters(), *module.buffers())}
    inputs = {str(each.device) for each in tensors.values()}
    if "meta" in weights | inputs:
        raise InputError(f"{name} is on the device meta, without values; move it with module.to_empty(device='cpu')")
    if len(weights | inputs) > 1:
        raise InputError(
            f"{name}: its weights are on {listed(sorted(weights))} and its inputs on {listed(sorted(inputs))}; move "
            "both to the cpu"
        )


def _check_branches(module: nn.Module, given: Mapping[str, object], positional: int, name: str) -> None:
    """Checks that the module does not branch on data, by calling ``torch.export``, which refuses such branches.

    Raises:
        InputError: A branch depends on data, so the file would always take the branch of the examples.
    """
    args, kwargs = tuple(list(given.values())[:positional]), dict(list(given.items())[positional:])
    try:
        torch.export.export(module, args, kwargs, strict=False)
    except Exception as error:  # torch raises errors of many kinds
        said = line_of(error).partition(" (unhinted")[0]
        if DEPENDS.search(said) is not None:  # otherwise it failed for another reason and the trace is kept
            raise InputError(
                f"{name} branches on the values of its data, so its graph is not the same for all inputs: "
                f"{short(said, quoted=False, limit=200)}"
            ) from error
