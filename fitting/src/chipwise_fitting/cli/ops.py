"""``chipwise ops``: single operators on any device, from a table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def command(
    table: Annotated[Path, typer.Option(help="CSV: op, device, runtime, dtype and the operator's sizes.")],
    out: Annotated[Path, typer.Option(help="File to write: the table with predictions added.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> None:
    """Predict how long single operators take: seconds with a 90 % interval, and what bounds them.

    chipwise ops --table ops.csv --out out.csv

    Operators and their columns:
    matmul (gemm): m, n, k · grouped_matmul: m, n, k, groups · attention: heads, kv_heads, head_dim, batch,
    query_tokens, past_tokens, window · latent_attention (mla): heads, batch, query_tokens, past_tokens, absorbed ·
    experts (moe): tokens, d_model, width, experts, topk · mamba2, gated_delta: heads, key_size, value_size, batch,
    query_tokens · norm: rows, width · embedding: tokens, width, rows · silu_mul, gelu, add, mul: elements ·
    all_reduce, all_gather, reduce_scatter, all_to_all, p2p: payload_bytes, devices
    """
    from chipwise.cli.output import json_of, notices
    from chipwise.core.csvfile import own_columns
    from chipwise_fitting.optable import ANSWERED, ASKED, RENAMED, ops_file

    rows, failed = ops_file(table, out)
    if as_json:
        json_of({"rows": rows, "failed": failed, "out": str(out)})
    else:
        notices.print(f"{rows - failed} of {rows} rows answered, {failed} with an error; wrote {out}")
        if own := own_columns(table, (*ASKED, *RENAMED, *ANSWERED)):
            notices.print(f"note: columns copied unchanged: {', '.join(own)}")
