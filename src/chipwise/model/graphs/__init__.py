"""Files of users: any ONNX graph as a list of operators with FLOPs and bytes.

``graph`` holds the records, which need no ONNX. ``read`` reads a file: it fixes open axes and values, lets ONNX Runtime
fuse operators in a child process (``fuse``, which may crash on odd files), and infers shapes (``shapes`` has the rules
for the runtime's own operators). ``operators`` classifies and counts each operator.
"""

from typing import TYPE_CHECKING

from chipwise.core.lazy import on_first_use

if TYPE_CHECKING:
    from chipwise.model.graphs.read import model_inputs as model_inputs
    from chipwise.model.graphs.read import read_graph as read_graph
    from chipwise.model.graphs.read import stated_inputs as stated_inputs

__getattr__, __dir__ = on_first_use(__name__, __file__)
