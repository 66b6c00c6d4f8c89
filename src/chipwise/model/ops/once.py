"""An operator that runs once for several passes, such as the latent decoder after all denoising steps."""

from __future__ import annotations

from dataclasses import dataclass

from chipwise.model.ops.op import Op
from chipwise.model.ops.work import Work


@dataclass(frozen=True, slots=True, kw_only=True)
class Once:
    """``op`` whose work is spread evenly over ``passes`` passes."""

    op: Op
    passes: int

    @property
    def kind(self) -> str:
        """The name of ``op`` in tables and reports."""
        return self.op.kind

    def work(self) -> Work:
        """One pass's share of the operator's work."""
        whole = self.op.work()
        return Work(
            flops=whole.flops / self.passes,
            weight_bytes=whole.weight_bytes / self.passes,
            read_bytes=whole.read_bytes / self.passes,
            write_bytes=whole.write_bytes / self.passes,
        )
