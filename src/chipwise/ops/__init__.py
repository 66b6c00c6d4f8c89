"""What kernels compute and move, counted with a pencil."""

from chipwise.ops.graph import OpGraph, Placed
from chipwise.ops.kinds import AttentionOp, Elementwise, EmbeddingOp, Matmul, NormOp, Op
from chipwise.ops.work import Work
from chipwise.ops.workload import Phase, Workload

__all__ = [
    "AttentionOp",
    "Elementwise",
    "EmbeddingOp",
    "Matmul",
    "NormOp",
    "Op",
    "OpGraph",
    "Phase",
    "Placed",
    "Work",
    "Workload",
]
