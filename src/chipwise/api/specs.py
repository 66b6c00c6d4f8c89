"""Functions that build and read model specifications; they check their arguments."""

from chipwise.core.arguments import public
from chipwise.design.run import spec as run_specs
from chipwise.model.arch import arch
from chipwise.model.published import read
from chipwise.model.walk import lower as lowering

load_run = public(run_specs.load_run)
lower = public(lowering.lower)
resolve = public(read.resolve)
uniform = public(arch.uniform)
