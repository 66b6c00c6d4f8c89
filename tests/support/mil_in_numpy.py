"""Runs a Core ML package in numpy, operator by operator, from its file; for the environment of coremltools alone.

    python -I mil_in_numpy.py PACKAGE < requests > answers

A request is a line of JSON, ``[tokens, start]``; an answer is the logits. The states last from one to the next.
"""

from __future__ import annotations

import json
import sys

import coremltools as ct
import numpy as np
from coremltools.converters.mil.frontend.milproto.load import load
from coremltools.converters.mil.mil import types


def numpy_type(var):
    return types.nptype_from_builtin(var.dtype)


def sliced(x, begin, end, stride=None, begin_mask=None, end_mask=None, squeeze_mask=None):
    """The index of ``slice_by_index`` and ``slice_update``."""
    places = []
    for axis in range(x.ndim):
        if squeeze_mask is not None and squeeze_mask[axis]:
            places.append(int(begin[axis]))
            continue
        first = None if begin_mask is not None and begin_mask[axis] else int(begin[axis])
        stop = None if end_mask is not None and end_mask[axis] else int(end[axis])
        assert first is None or 0 <= first <= x.shape[axis]
        assert stop is None or stop <= x.shape[axis]
        places.append(slice(first, stop, None if stride is None else int(stride[axis])))
    return tuple(places)


def softmax(x):
    grown = np.exp(x - x.max(-1, keepdims=True))
    return grown / grown.sum(-1, keepdims=True)


def attention(query, key, value, attn_mask):
    scores = (query @ key.swapaxes(-1, -2)).astype(np.float32) / np.sqrt(query.shape[-1])
    added = np.where(attn_mask, 0, -np.inf) if attn_mask.dtype == bool else attn_mask
    return (softmax(scores + added) @ value.astype(np.float32)).astype(query.dtype)


def blockwise(data, scale, offset=None):
    for axis in range(data.ndim):
        scale = np.repeat(scale, data.shape[axis] // scale.shape[axis], axis)
    return data.astype(np.float32).astype(scale.dtype) * scale


def norm(x, axes, epsilon, gamma=None, beta=None):
    wide = x.astype(np.float32)
    axes = tuple(int(axis) for axis in axes)
    wide = (wide - wide.mean(axes, keepdims=True)) / np.sqrt(wide.var(axes, keepdims=True) + epsilon)
    return (wide * (1 if gamma is None else gamma) + (0 if beta is None else beta)).astype(x.dtype)


def taken(x, indices, axis=0, batch_dims=0, validate_indices=False):
    assert np.all((indices >= -x.shape[int(axis)]) & (indices < x.shape[int(axis)]))
    return np.take(x, indices, axis=int(axis))


def reshaped(x, shape):
    return x.reshape([x.shape[axis] if size == 0 else int(size) for axis, size in enumerate(shape)])


OPS = {
    "add": lambda x, y: x + y,
    "mul": lambda x, y: x * y,
    "real_div": lambda x, y: x / y,
    "less_equal": lambda x, y: x <= y,
    "greater_equal": lambda x, y: x >= y,
    "select": lambda cond, a, b: np.where(cond, a, b),
    "linear": lambda x, weight, bias=None: x @ weight.T + (0 if bias is None else bias),
    "matmul": lambda x, y, transpose_x=False, transpose_y=False: (
        (x.swapaxes(-1, -2) if transpose_x else x) @ (y.swapaxes(-1, -2) if transpose_y else y)
    ),
    "slice_by_index": lambda x, **where: x[sliced(x, **where)],
    "reshape": reshaped,
    "concat": lambda values, axis, interleave=False: np.concatenate([np.atleast_1d(v) for v in values], int(axis)),
    "transpose": lambda x, perm: x.transpose([int(axis) for axis in perm]),
    "gather": taken,
    "abs": lambda x: np.abs(x),
    "reduce_max": lambda x, axes, keep_dims: x.max(tuple(map(int, axes)), keepdims=bool(keep_dims)),
    "reduce_mean": lambda x, axes, keep_dims: x.mean(
        tuple(map(int, axes)), keepdims=bool(keep_dims), dtype=np.float32
    ).astype(x.dtype),
    "square": lambda x: x * x,
    "sqrt": lambda x: np.sqrt(x),
    "rsqrt": lambda x, epsilon=0.0: (1 / np.sqrt(x + x.dtype.type(epsilon))).astype(x.dtype),
    "shape": lambda x: np.array(x.shape, np.int32),
    "range_1d": lambda start, end, step: np.arange(start, end, step),
    "expand_dims": lambda x, axes: np.expand_dims(x, tuple(map(int, axes))),
    "squeeze": lambda x, axes: np.squeeze(x, tuple(map(int, axes))),
    "scaled_dot_product_attention": attention,
    "silu": lambda x: (x / (1 + np.exp(-x.astype(np.float32)))).astype(x.dtype),
    "tile": lambda x, reps: np.tile(x, [int(each) for each in reps]),
    "layer_norm": norm,
    "constexpr_blockwise_shift_scale": blockwise,
}


class Package:
    """A package whose states are kept."""

    def __init__(self, path: str) -> None:
        held = ct.models.MLModel(path, skip_model_load=True)
        spec = held.get_spec()
        program = load(spec, specification_version=spec.specificationVersion, file_weights_dir=held.weights_dir)
        (self.function,) = program.functions.values()
        self.states = {
            name: np.zeros(var.shape, np.float16)
            for name, var in self.function.inputs.items()
            if types.is_state(var.sym_type)
        }

    def __call__(self, tokens, start):
        """Logits of the last token."""
        values = {"tokens": np.array([tokens], np.int32), "start": np.array([start], np.int32)}

        def value(given):
            if isinstance(given, (list, tuple)):
                return [value(each) for each in given]
            return given.val if given.name not in values and given.val is not None else values[given.name]

        for op in self.function.operations:
            kind = op.op_type
            if kind == "const":
                continue
            if kind == "read_state":
                values[op.outputs[0].name] = self.states[op.input.name].copy()
                continue
            if kind == "coreml_update_state":
                self.states[op.state.name] = value(op.value).astype(np.float16)
                values[op.outputs[0].name] = self.states[op.state.name].copy()
                continue
            given = {name: value(each) for name, each in op.inputs.items() if each is not None}
            if kind == "cast":
                found = given["x"].astype(types.nptype_from_builtin(types.string_to_builtin(str(given["dtype"]))))
            elif kind == "slice_update":
                found, update = given.pop("x").copy(), given.pop("update")
                found[sliced(found, **given)] = update
            else:
                found = OPS[kind](**given)
            out = op.outputs[0]
            values[out.name] = np.asarray(found).astype(numpy_type(out))
        return values[self.function.outputs[0].name]


if __name__ == "__main__":
    package = Package(sys.argv[1])
    for line in sys.stdin:
        print(json.dumps(package(*json.loads(line)).tolist()), flush=True)
