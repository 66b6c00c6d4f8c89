"""Runs, times and profiles any ONNX graph, on data that the user gives or that is generated for its inputs."""

from typing import TYPE_CHECKING

from chipwise.core.lazy import on_first_use

if TYPE_CHECKING:
    from chipwise.deploy.graphs.inputs import parse_shapes as parse_shapes
    from chipwise.deploy.graphs.inputs import parse_values as parse_values
    from chipwise.deploy.graphs.inputs import write_arrays as write_arrays
    from chipwise.deploy.graphs.probe import probe as probe
    from chipwise.deploy.graphs.reading import feed_for as feed_for
    from chipwise.deploy.graphs.torch_export import export_module as export_module
    from chipwise.deploy.graphs.torch_export import exported as exported

__getattr__, __dir__ = on_first_use(__name__, __file__)
