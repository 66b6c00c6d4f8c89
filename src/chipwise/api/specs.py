"""Building and reading model specifications, with their arguments checked."""

from chipwise.blocks import lowering
from chipwise.core.arguments import public
from chipwise.run import spec as run_specs
from chipwise.spec import arch
from chipwise.spec.hf import read

load_run = public(run_specs.load_run)
lower = public(lowering.lower)
resolve = public(read.resolve)
uniform = public(arch.uniform)
