"""Classes, FLOPs and bytes of single operators of ONNX and ONNX Runtime."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import onnx

from chipwise.model.graphs.graph import GraphOp, Shape

ELEMENTWISE = {
    "Add", "Sub", "Mul", "Div", "Relu", "LeakyRelu", "PRelu", "Clip", "Neg", "Abs", "Min", "Max", "Sum", "Mean",
    "Equal", "Greater", "Less", "GreaterOrEqual", "LessOrEqual", "And", "Or", "Not", "Xor", "Where", "Floor",
    "Ceil", "Round", "Sign", "Mod", "ThresholdedRelu", "HardSigmoid", "BatchNormalization", "Trilu", "IsNaN",
    "IsInf", "QLinearAdd", "QLinearMul", "BiasAdd", "BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor",
    "BitwiseNot", "HardSwish", "Shrink", "QLinearLeakyRelu", "Dropout", "QLinearWhere", "CumSum", "Bernoulli",
    "BiasDropout",
}  # fmt: skip
TRANSCENDENTAL = {
    "Sqrt", "Reciprocal", "Exp", "Log", "Pow", "Erf", "Sigmoid", "Tanh", "Gelu", "FastGelu", "QuickGelu",
    "BiasGelu", "Softplus", "Softsign", "Elu", "Selu", "Celu", "Mish", "Swish", "Sin", "Cos", "Tan", "Asin", "Acos",
    "Atan", "Sinh", "Cosh", "QLinearSigmoid", "RotaryEmbedding", "BiasSplitGelu",
}  # fmt: skip
NORMS = {
    "LayerNormalization", "SimplifiedLayerNormalization", "SkipLayerNormalization",
    "SkipSimplifiedLayerNormalization", "InstanceNormalization", "GroupNormalization", "GroupNorm", "SkipGroupNorm",
    "RMSNormalization", "LpNormalization", "MeanVarianceNormalization", "LRN", "EmbedLayerNormalization",
}  # fmt: skip
SOFTMAX = {"Softmax", "LogSoftmax", "QLinearSoftmax", "Hardmax"}
REDUCTIONS = {
    "ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceL1", "ReduceL2", "ReduceProd", "ReduceSumSquare",
    "ReduceLogSum", "ReduceLogSumExp", "ArgMax", "ArgMin", "GlobalAveragePool", "GlobalMaxPool",
    "QLinearReduceMean", "QLinearGlobalAveragePool", "TopK",
}  # fmt: skip
POOLS = {"MaxPool", "AveragePool", "LpPool", "QLinearAveragePool"}
MOVES = {
    "Transpose", "Concat", "Slice", "Gather", "GatherElements", "GatherND", "ScatterND", "ScatterElements",
    "Scatter", "Pad", "Expand", "Tile", "Split", "Cast", "CastLike", "DepthToSpace", "SpaceToDepth", "ReorderInput",
    "ReorderOutput", "ConstantOfShape", "Range", "OneHot", "EyeLike", "NonZero", "Compress", "ReverseSequence",
    "QLinearConcat", "RandomNormalLike", "RandomNormal", "RandomUniform", "RandomUniformLike", "Unique",
    "NonMaxSuppression", "GatherBlockQuantized", "Col2Im", "MemcpyToHost", "MemcpyFromHost", "SequenceAt",
    "SequenceInsert", "SplitToSequence", "ConcatFromSequence", "SequenceEmpty", "SequenceConstruct",
    "SequenceLength", "Im2Col", "TensorScatter",
}  # fmt: skip
VIEWS = {"Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity", "Shape", "Size", "Optional", "OptionalGetElement"}
FORMATS = {"QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "QuantizeBFP", "DequantizeBFP"}
RESIZES = {"Resize", "Upsample", "GridSample", "RoiAlign", "MaxRoiPool", "AffineGrid"}
CONVS = {"Conv", "FusedConv", "ConvInteger", "QLinearConv", "NhwcFusedConv", "NhwcConv", "ConvTranspose"}
MATRICES = {
    "MatMul", "FusedMatMul", "Gemm", "FusedGemm", "MatMulInteger", "QLinearMatMul", "QGemm",
    "DynamicQuantizeMatMul", "MatMulIntegerToFloat", "MatMulNBits", "TransposeMatMul", "QLinearGemm", "Einsum",
    "FusedMatMulActivation",
}  # fmt: skip
RECURRENT = {"LSTM": 4, "GRU": 3, "RNN": 1, "DynamicQuantizeLSTM": 4}
GATHERS = {"Gather", "GatherElements", "GatherND", "Slice", "GatherBlockQuantized", "EmbedLayerNormalization"}
TAP_FLOPS = {"nearest": 0, "linear": 8, "cubic": 32}  # per output value of a resize, from 1, 4 or 16 neighbours
FLOPS_OF = {"norm": 8, "softmax": 5, "elementwise": 1, "transcendental": 1, "reduction": 1, "resize": 8, "format": 2}
"""FLOPs per value: per input value for reductions and norms, per output value for all other operators."""
_BITS = {"int4": 4, "uint4": 4, "float4_e2m1fn": 4, "int2": 2, "uint2": 2, "bool": 8, "bfloat16": 16}
_FORMATS = {"float32": "fp32", "float64": "fp64", "float16": "fp16", "bfloat16": "bf16"}

Known = Mapping[str, tuple[str, Shape]]


def operator_of(
    node: onnx.NodeProto, known: Known, stored: Mapping[str, onnx.TensorProto], *, runs: int, module: str
) -> GraphOp:
    """Counts one node's FLOPs and bytes, and returns its record.

    Args:
        node: The node of the fused graph.
        known: Dtype and shape of each tensor, including weights.
        stored: Maps each weight's name to the weight.
        runs: How often the node runs in one pass.
        module: Path of the module that the node comes from.
    """
    kind, flops, padded, gemm = _counted(node, known, stored)
    names = [name for name in node.input if name]
    if any(name not in known for name in [*names, *(name for name in node.output if name)]):
        kind, flops = "unknown", None
    weights = sum(_size(known[name]) for name in dict.fromkeys(names) if name in stored and name in known)
    read = sum(_size(known[name]) for name in dict.fromkeys(names) if name not in stored and name in known)
    written = sum(_size(known[name]) for name in node.output if name in known)
    if node.op_type in GATHERS:  # a gather reads only the chosen rows
        weights, read = min(weights, written), min(read, 2 * written)
    if kind == "view":
        weights = read = written = 0
    return GraphOp(
        name=node.name.rpartition("#")[0] or node.name,
        op_type=node.op_type,
        kind=kind,
        module=module,
        flops=flops,
        padded_flops=padded,
        weight_bytes=weights if flops is not None else 0,
        read_bytes=read if flops is not None else 0,
        write_bytes=written if flops is not None else 0,
        dtype=_arithmetic(node, known),
        runs=runs,
        gemm=gemm,
        inputs=tuple(known[name][1] for name in node.input if name in known),
        outputs=tuple(known[name][1] for name in node.output if name in known),
        output=next((name for name in node.output if name), ""),
    )


def all_nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """All nodes of a graph. The nodes inside a branch or loop follow the node that contains them."""
    for node in graph.node:
        yield node
        for inner in inner_graphs(node):
            yield from all_nodes(inner)


def inner_graphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """The graphs inside a node: the branches of a condition, or the body of a loop."""
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            yield attribute.g
        yield from attribute.graphs


def _counted(
    node: onnx.NodeProto, known: Known, stored: Mapping[str, onnx.TensorProto]
) -> tuple[str, int | None, int, Shape]:
    """A node's class, FLOPs, FLOPs on padding, and matrix products.

    The last is a tuple (number of products, rows, columns, depth); all products have the same size. It is () if there
    are no products.
    """
    name = node.op_type
    if node.domain not in ("", "ai.onnx", "com.microsoft", "com.microsoft.nchwc", "com.ms.internal.nhwc"):
        return "unknown", None, 0, ()
    first = known[node.input[0]][1] if node.input and node.input[0] in known else None
    out = known[node.output[0]][1] if node.output and node.output[0] in known else None
    if name in VIEWS:
        return "view", 0, 0, ()
    if out is None or (first is None and node.input):
        return "unknown", None, 0, ()
    if first is not None:
        if name in CONVS:
            return _conv(node, known, first, out)
        if name in MATRICES:
            return _product(node, known, stored, first, out)
        if name in RECURRENT:
            return _recurrent(node, known, first)
        if name in ("Attention", "MultiHeadAttention", "GroupQueryAttention", "QAttention"):
            return _attention(node, known, first, out)
        if name in POOLS:
            taps = math.prod(_ints(node, "kernel_shape", ()))
            return "pool", math.prod(out) * taps, 0, ()
        if name in ("STFT", "DFT"):
            return "fourier", _fourier(out), 0, ()
    written, read = math.prod(out), math.prod(first) if first is not None else 0
    if name in ("Resize", "Upsample"):
        mode = next((each.s.decode() for each in node.attribute if each.name == "mode"), "nearest")
        return "resize", TAP_FLOPS.get(mode, FLOPS_OF["resize"]) * written, 0, ()
    for kind, names in (
        ("elementwise", ELEMENTWISE), ("transcendental", TRANSCENDENTAL), ("norm", NORMS), ("softmax", SOFTMAX),
        ("reduction", REDUCTIONS), ("resize", RESIZES), ("format", FORMATS),
    ):  # fmt: skip
        if name in names:
            return kind, FLOPS_OF[kind] * (read if kind in ("reduction", "norm") else written), 0, ()
    if name in MOVES:
        return "move", 0, 0, ()
    return "unknown", None, 0, ()


def _conv(node: onnx.NodeProto, known: Known, first: Shape, out: Shape) -> tuple[str, int | None, int, Shape]:
    place = 3 if node.op_type == "QLinearConv" else 1
    weight = known.get(node.input[place])
    if weight is None:
        return "unknown", None, 0, ()
    kernel, groups = weight[1][2:], _ints(node, "group", (1,))[0]
    rank = len(kernel)
    if node.op_type == "ConvTranspose":  # weights are [in, out / groups, …]; each input value is spread over the taps
        filters = weight[1][1]
        taps = math.prod(kernel)
        flops = 2 * math.prod(first) * filters * taps
        return "transposed conv", flops, 0, (groups, math.prod(first) // first[1], filters * taps, first[1] // groups)
    channels_last = node.op_type.startswith("Nhwc")
    space = (first[1:-1], out[1:-1]) if channels_last else (first[2:], out[2:])
    strides, dilations = _ints(node, "strides", (1,) * rank), _ints(node, "dilations", (1,) * rank)
    pads = _ints(node, "pads", (0,) * (2 * rank))
    mode = next((each.s.decode() for each in node.attribute if each.name == "auto_pad"), "NOTSET")
    inside = whole = 1
    for axis in range(rank):
        before = pads[axis]
        if mode.startswith("SAME"):
            total = max(
                0, (space[1][axis] - 1) * strides[axis] + (kernel[axis] - 1) * dilations[axis] + 1 - space[0][axis]
            )
            before = total // 2 if mode == "SAME_UPPER" else total - total // 2
        elif mode == "VALID":
            before = 0
        inside *= _taps(space[0][axis], space[1][axis], kernel[axis], strides[axis], dilations[axis], before)
        whole *= space[1][axis] * kernel[axis]
    filters, depth, batch = weight[1][0], weight[1][1], out[0]
    each = 2 * batch * filters * depth
    if groups > 1:
        kind = "depthwise conv" if depth == 1 and filters % groups == 0 and first[1] == groups else "grouped conv"
    else:
        kind = "pointwise conv" if math.prod(kernel) == 1 else "conv"
    rows = batch * math.prod(space[1])
    return kind, each * inside, each * (whole - inside), (groups, rows, filters // groups, depth * math.prod(kernel))


def _taps(size: int, outputs: int, kernel: int, stride: int, dilation: int, before: int) -> int:
    """Number of (output, tap) pairs along one axis whose input is not padding.

    >>> _taps(7, 7, 3, 1, 1, 1)  # 21 pairs, of which the first and the last lie on padding
    19
    """
    pairs = 0
    for tap in range(kernel):
        shift = tap * dilation - before  # an output o reads the input o · stride + shift
        least = max(0, -(shift // stride)) if shift < 0 else 0
        last = min(outputs - 1, (size - 1 - shift) // stride)
        pairs += max(0, last - least + 1)
    return pairs


def _product(
    node: onnx.NodeProto, known: Known, stored: Mapping[str, onnx.TensorProto], first: Shape, out: Shape
) -> tuple[str, int | None, int, Shape]:
    name = node.op_type
    place = 3 if name in ("QLinearMatMul", "QGemm") else 1
    second = node.input[place] if len(node.input) > place else ""
    weight = known.get(second)
    if name == "MatMulNBits":
        depth, columns = _ints(node, "K", (0,))[0], _ints(node, "N", (0,))[0]
        rows = math.prod(first) // max(depth, 1)
        return "matmul", 2 * rows * depth * columns, 0, (1, rows, columns, depth)
    if name == "Einsum":
        equation = next(each.s.decode() for each in node.attribute if each.name == "equation").replace(" ", "")
        return _einsum(equation, [known[each][1] for each in node.input if each in known])
    if weight is None or not first:
        return "unknown", None, 0, ()
    flipped = (
        name in ("Gemm", "FusedGemm", "QGemm", "QLinearGemm", "FusedMatMul", "TransposeMatMul")
        and _ints(node, "transA", (0,))[0]
    )
    depth = first[-2] if flipped and len(first) > 1 else first[-1]
    flops = 2 * math.prod(out) * depth
    if second in stored and len(weight[1]) <= 2:
        columns = out[-1] if len(weight[1]) == 2 else 1
        return "matmul", flops, 0, (1, math.prod(out) // max(columns, 1), columns, depth)
    rows, columns = (out[-2] if len(out) > 1 else 1), (out[-1] if out else 1)
    kind = "matmul" if second in stored else "batched matmul"
    return kind, flops, 0, (math.prod(out) // max(rows * columns, 1), rows, columns, depth)


def _einsum(equation: str, shapes: Sequence[Shape]) -> tuple[str, int | None, int, Shape]:
    """Counts the FLOPs of an einsum of two tensors: two for each combination of its indices."""
    terms = equation.partition("->")[0].split(",")
    if (
        "." in equation
        or len(terms) != len(shapes)
        or any(len(t) != len(s) for t, s in zip(terms, shapes, strict=True))
    ):
        return "unknown", None, 0, ()
    sizes = {
        index: size for term, shape in zip(terms, shapes, strict=True) for index, size in zip(term, shape, strict=True)
    }
    if len(shapes) != 2:
        return ("elementwise", math.prod(sizes.values()), 0, ()) if len(shapes) == 1 else ("unknown", None, 0, ())
    both = set(terms[0]) & set(terms[1])
    result = set(equation.partition("->")[2])
    parts = [both & result, set(terms[0]) - both, set(terms[1]) - both, both - result]
    batch, rows, columns, depth = (math.prod(sizes[index] for index in part) for part in parts)
    return "batched matmul", 2 * batch * rows * columns * depth, 0, (batch, rows, columns, depth)


def _recurrent(node: onnx.NodeProto, known: Known, first: Shape) -> tuple[str, int | None, int, Shape]:
    """Counts the FLOPs of all steps of a recurrent layer.

    The layer's input is [steps, batch, features]; with the attribute ``layout: 1``, it is [batch, steps, features].
    """
    hidden = _ints(node, "hidden_size", (0,))[0]
    direction = next((each.s.decode() for each in node.attribute if each.name == "direction"), "forward")
    directions = 2 if direction == "bidirectional" else 1
    steps, batch, features = first if not _ints(node, "layout", (0,))[0] else (first[1], first[0], first[2])
    columns = RECURRENT[node.op_type] * hidden
    flops = directions * steps * batch * (2 * columns * (features + hidden) + 5 * columns)
    return "recurrent", flops, 0, (directions * steps, batch, columns, features + hidden)


def _attention(node: onnx.NodeProto, known: Known, first: Shape, out: Shape) -> tuple[str, int | None, int, Shape]:
    """Counts the FLOPs of fused attention: scores and weighted sums.

    In com.microsoft's Attention and QAttention, the projections are included.
    """
    heads = _ints(node, "num_heads", _ints(node, "q_num_heads", (0,)))[0]
    if not heads:
        return "unknown", None, 0, ()
    shapes = [known[name][1] if name in known else () for name in node.input]
    queries = first[1] if len(first) == 3 else first[2]
    width = out[-1] if len(out) == 3 else out[1] * out[-1]
    projections = 0
    if node.op_type in ("QAttention", "Attention") and node.domain == "com.microsoft":
        projections = 2 * first[0] * queries * math.prod(shapes[1])
        keys = queries
    elif node.op_type == "GroupQueryAttention":
        past = shapes[3][2] if len(shapes) > 3 and len(shapes[3]) == 4 else 0
        keys = queries + past
    else:
        key = shapes[1] if len(shapes) > 1 and shapes[1] else first
        keys = key[2] if len(key) == 4 else key[1]
    flops = 4 * first[0] * queries * keys * width + projections
    return "attention", flops, 0, (first[0] * heads, queries, keys, width // heads)


def _fourier(out: Shape) -> int:
    """FLOPs of a Fourier transform: 5 n log2 n for each transform along the second-to-last axis."""
    size = max(2, out[-2] if len(out) > 1 else 2)
    return round(5 * math.prod(out[:-2]) * size * math.log2(size))


def _ints(node: onnx.NodeProto, name: str, default: Sequence[int]) -> tuple[int, ...]:
    for each in node.attribute:
        if each.name == name:
            return tuple(each.ints) if each.type == onnx.AttributeProto.INTS else (each.i,)
    return tuple(default)


def _size(known: tuple[str, Shape]) -> int:
    """Size of a tensor in bytes, from its dtype and shape."""
    dtype, shape = known
    digits = "".join(letter for letter in dtype if letter.isdigit())
    width = _BITS.get(dtype, int(digits) if digits and dtype[0] in "uif" else 64)
    return -(-math.prod(shape) * width // 8)


def _arithmetic(node: onnx.NodeProto, known: Known) -> str:
    """Number format of a node's arithmetic, inferred from its operands."""
    if node.op_type == "MatMulNBits":
        return f"int{_ints(node, 'bits', (4,))[0]}"
    if (
        node.op_type in ("DynamicQuantizeMatMul", "DynamicQuantizeLSTM", "MatMulIntegerToFloat")
        or "QLinear" in node.op_type
    ):
        return "int8"
    dtype = next((known[name][0] for name in node.input if name in known), "float32")
    return "int8" if dtype in ("int8", "uint8") else _FORMATS.get(dtype, dtype)
