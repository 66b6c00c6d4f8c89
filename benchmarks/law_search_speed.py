"""How fast a law ranks designs, and how long a search by law takes over 10^15 designs around a billion parameters.

    python benchmarks/law_search_speed.py --out law-search-speed.csv

Columns: what, designs, seconds (of this process's CPU), per_s. ``costs`` are those of the data sheet, ``law`` the loss
alone, ``search`` all of it: prices of the blocks, drawing, breeding, polishing.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np

from chipwise.core.csvfile import write_rows
from chipwise.design.limits import Constraint, Objective
from chipwise.design.phases.by_law import RowShapes, search_by_law
from chipwise.design.run.spec import TargetSpec
from chipwise.design.targets.sheet import SheetTarget
from chipwise.model.ops.workload import Workload
from chipwise.model.space.designs import summary
from chipwise.model.space.search_space import SearchSpace
from chipwise.model.space.space_spec import LayerSpace, SpaceSpec
from chipwise.training.laws.laws import shipped
from provenance import stamp

DEVICE, TOKENS, ROWS = "h100-sxm", 300e9, 500_000
SPEC = SpaceSpec(
    d_model=(1536, 1792, 2048, 2304, 2560),
    depth=(12, 16, 20, 24),
    vocab_size=(50_304,),
    head_size=(128,),
    weights=("bf16",),
    layer=LayerSpace(heads=(12, 16, 20), kv_heads=(2, 4), ffn_width=(4096, 5632, 7168, 8704)),
    layers={"attention": "thirds", "ffn_width": "each"},
    max_tokens=4096,
)


def main() -> None:
    """Times, prints, writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    space, law, rows = SearchSpace(SPEC), shipped(), []

    def timed(what: str, count: float, begun: float) -> None:
        seconds = time.process_time() - begun
        rate = f"{count / seconds:.3g}"
        rows.append({"what": what, "designs": f"{count:.3g}", "seconds": f"{seconds:.2f}", "per_s": rate})
        print(f"{what}: {count:.3g} designs in {seconds:.2f} CPU s, {rate} per second")

    begun = time.process_time()
    served = TargetSpec(device=DEVICE)
    assert served.sheet is not None
    workload = Workload(prompt_tokens=512, new_tokens=128)
    metrics = SheetTarget(space, served.sheet, served=served, workload=workload, seed=0, energy=False).metrics
    metrics(space.sample(1, np.random.default_rng(0)))
    table_s = time.process_time() - begun
    drawn = space.sample(ROWS, np.random.default_rng(0))
    begun = time.process_time()
    known = metrics(drawn)
    timed("costs", ROWS, begun)
    shapes, begun = RowShapes(space), time.process_time()
    for start in range(0, ROWS, 8_192):
        law.nats_per_token(shapes(drawn[start : start + 8_192]), TOKENS)
    timed("law", ROWS, begun)
    cap_s = float(np.quantile(known["tpot_p50"], 0.5))
    begun = time.process_time()
    found = search_by_law(
        space,
        metrics,
        law,
        tokens=TOKENS,
        constraints=[Constraint(metric="tpot_p50", op="<=", limit=cap_s, text=f"<= {cap_s:.4g} s")],
        objectives=[Objective(metric="tpot_p50", direction="minimize")],
        seed=0,
    )
    timed("search", float(space.size()), begun - table_s)
    loss, parameters = found.loss(), found.metrics["parameters"][0]
    print(
        f"{found.priced:,} priced; best: {summary(found.design())}, {parameters / 1e9:.2f} B parameters, expected",
        end=" ",
    )
    print(f"{loss.value:.3f} [{loss.low:.3f}, {loss.high:.3f}] nats; {len(found.rows)} designs on the front")
    write_rows(options.out, rows, list(rows[0]))
    stamp(options.out)


if __name__ == "__main__":
    main()
