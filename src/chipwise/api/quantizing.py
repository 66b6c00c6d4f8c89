"""The public function that makes a model faster by number formats, with arguments checked."""

from chipwise.core.arguments import public
from chipwise.design.quantize import onnx_file

quantize = public(onnx_file.quantize)
