"""Public functions for measuring a model here or elsewhere and for exporting it, with arguments checked."""

from chipwise.core.arguments import public
from chipwise.deploy.teach import machine
from chipwise.design.models import exports, kits, measured_parts, measuring
from chipwise.design.quantize import onnx_file

export = public(exports.export)
import_measurements = public(kits.import_measurements)
kit = public(kits.kit)
measure = public(measuring.measure)
measure_parts = public(measured_parts.measure_parts)
quantize = public(onnx_file.quantize)
teach = public(machine.teach)
