"""Work of kernels: FLOPs and bytes, counted in closed form."""

from chipwise.ops.attention import AttentionOp, LatentAttentionOp, flash_attention_io, standard_attention_io
from chipwise.ops.collective import CollectiveOp
from chipwise.ops.elementwise import Elementwise
from chipwise.ops.embedding import EmbeddingOp, SampleOp
from chipwise.ops.graph import OpGraph, Placed
from chipwise.ops.matmul import DENSE_CONV, ConvOp, GroupedMatmul, Matmul
from chipwise.ops.norm import NormOp
from chipwise.ops.once import Once
from chipwise.ops.op import Op
from chipwise.ops.pool import PoolOp
from chipwise.ops.ranking import EmbeddingBagOp, RequestAttentionOp, RowDotOp
from chipwise.ops.routing import ExpertsOp, RouteOp
from chipwise.ops.scan import ScanOp
from chipwise.ops.work import Work
from chipwise.ops.workload import Phase, Workload

__all__ = [
    "DENSE_CONV",
    "AttentionOp",
    "CollectiveOp",
    "ConvOp",
    "Elementwise",
    "EmbeddingBagOp",
    "EmbeddingOp",
    "ExpertsOp",
    "GroupedMatmul",
    "LatentAttentionOp",
    "Matmul",
    "NormOp",
    "Once",
    "Op",
    "OpGraph",
    "Phase",
    "Placed",
    "PoolOp",
    "RequestAttentionOp",
    "RouteOp",
    "RowDotOp",
    "SampleOp",
    "ScanOp",
    "Work",
    "Workload",
    "flash_attention_io",
    "standard_attention_io",
]
