"""ggml, llama.cpp's library of formats and kernels, from the package llama-cpp-python or xllamacpp.

This module packs matrices as llama.cpp's own quantiser does, restores them, and times the kernels that llama.cpp would
run on this machine, including those for which weights are repacked when a model is loaded. Only C functions of ggml's
public headers are called, so that any version works. If both packages are installed, llama-cpp-python's library is
used.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from chipwise.core.arrays import Float32Array
from chipwise.errors import InputError, MeasurementError, MissingExtra, Unsupported

Rounding = Literal["none", "f16", "q8_0", "q8_K"]
Bytes = npt.NDArray[np.uint8]
_THREAD_VALUES = 1 << 16  # minimum number of a matrix's values for each packing thread


@dataclass(frozen=True, slots=True, kw_only=True)
class GgmlType:
    """A format of ggml: blocks of values of a row."""

    name: str
    code: int
    block: int  # values per block
    block_bytes: int
    activations: Rounding  # how its kernels round the other factor of a matrix product

    @property
    def bits(self) -> float:
        """Bits per value, scales included."""
        return 8 * self.block_bytes / self.block

    def fits(self, width: int) -> bool:
        """Whether rows of ``width`` values can be stored."""
        return width % self.block == 0

    def matrix_bytes(self, rows: int, width: int) -> int:
        """Bytes of a matrix."""
        return rows * width // self.block * self.block_bytes


def _types(*rows: tuple[str, int, int, int, Rounding]) -> dict[str, GgmlType]:
    return {
        name: GgmlType(name=name, code=code, block=block, block_bytes=size, activations=rounding)
        for name, code, block, size, rounding in rows
    }


TYPES = _types(
    ("F32", 0, 1, 4, "none"),
    ("F16", 1, 1, 2, "f16"),
    ("Q4_0", 2, 32, 18, "q8_0"),
    ("Q4_1", 3, 32, 20, "q8_0"),
    ("Q5_0", 6, 32, 22, "q8_0"),
    ("Q5_1", 7, 32, 24, "q8_0"),
    ("Q8_0", 8, 32, 34, "q8_0"),
    ("Q2_K", 10, 256, 84, "q8_K"),
    ("Q3_K", 11, 256, 110, "q8_K"),
    ("Q4_K", 12, 256, 144, "q8_K"),
    ("Q5_K", 13, 256, 176, "q8_K"),
    ("Q6_K", 14, 256, 210, "q8_K"),
    ("IQ4_NL", 20, 32, 18, "q8_0"),
    ("IQ3_S", 21, 256, 110, "q8_K"),
    ("IQ2_S", 22, 256, 82, "q8_K"),
    ("IQ4_XS", 23, 256, 136, "q8_K"),
    ("IQ3_XXS", 18, 256, 98, "q8_K"),
)
"""Formats by name. References: block sizes of ggml-common.h; dot products of ``type_traits_cpu`` in ggml-cpu.c."""


class _Memory(ctypes.Structure):
    _fields_ = (("size", ctypes.c_size_t), ("buffer", ctypes.c_void_p), ("no_alloc", ctypes.c_bool))


def library_path() -> tuple[str, tuple[Path, ...]] | None:
    """The package that contains ggml, and its libraries in the order of loading; None if none is installed."""
    found = importlib.util.find_spec("llama_cpp")
    if found is not None and found.origin is not None:
        folder = Path(found.origin).parent / "lib"
        parts = [path for stem in ("ggml-base", "ggml-cpu", "ggml") for path in sorted(folder.glob(f"*{stem}.*"))[:1]]
        if len(parts) == 3:
            return "llama-cpp-python", tuple(parts)
    found = importlib.util.find_spec("xllamacpp")
    if found is not None and found.origin is not None:
        parts = [path for ending in ("so", "pyd") for path in sorted(Path(found.origin).parent.glob(f"*.{ending}"))[:1]]
        if parts:
            return "xllamacpp", tuple(parts)
    return None


class Ggml:
    """The loaded library.

    Raises:
        MissingExtra: Neither package is installed.
    """

    def __init__(self) -> None:
        place = library_path()
        if place is None:
            raise MissingExtra("xllamacpp", "all")
        self.package, paths = place
        # Not global, or OpenVINO would use this library's C++ symbols.
        self._parts = [ctypes.CDLL(str(path)) for path in paths]
        self.call("ggml_log_set", None, _quiet, ctypes.c_void_p())
        self.call("ggml_cpu_init", None)

    def call(self, name: str, result: type[object] | None, *values: object) -> int:
        """Returns the result of a C function; numbers are passed as 64-bit integers, addresses as ``c_void_p``."""
        function = self._function(name)
        function.restype = result
        given = function(*(ctypes.c_int64(value) if isinstance(value, int) else value for value in values))
        return int(given or 0)

    def pointer(self, name: str, *values: object) -> ctypes.c_void_p:
        """Calls a C function that returns an address, and returns that address."""
        return ctypes.c_void_p(self.call(name, ctypes.c_void_p, *values))

    def _function(self, name: str) -> ctypes._NamedFuncPointer:
        for part in self._parts:
            try:
                return part[name]
            except AttributeError:
                continue
        raise Unsupported(f"the llama.cpp in {self.package} has no {name}; install a newer one")

    def vectors(self) -> str:
        """Name of the instruction set that the kernels use, such as ``AVX2``, ``AVX512-VNNI`` or ``NEON``."""
        known = {
            "avx512_vnni": "AVX512-VNNI",
            "avx512": "AVX512",
            "avx2": "AVX2",
            "avx": "AVX",
            "matmul_int8": "I8MM",
            "neon": "NEON",
        }
        return next((word for key, word in known.items() if self.call(f"ggml_cpu_has_{key}", ctypes.c_int)), "scalar")

    def pack(self, values: Float32Array, kind: GgmlType, importance: Float32Array | None = None) -> Bytes:
        """Packs a matrix (rows, width) in a format, as bytes (rows, row bytes).

        Args:
            values: The matrix; all values must be finite.
            kind: The format.
            importance: Weights (width,) of the rounding errors: the mean square of each input. None: equal weights.

        Raises:
            Unsupported: The width is not a multiple of the format's block.
            InputError: A value is not finite.
        """
        rows, width = values.shape
        if not kind.fits(width):
            raise Unsupported(f"{kind.name} stores blocks of {kind.block} values; rows of {width} cannot be stored")
        if not np.isfinite(values).all():
            raise InputError("the matrix has values that are not finite (NaN or infinite)")
        held = np.ascontiguousarray(values, np.float32)
        made = np.empty((rows, kind.matrix_bytes(1, width)), np.uint8)
        if kind.name in ("F32", "F16"):
            return held.astype(np.float16 if kind.name == "F16" else np.float32).view(np.uint8)
        weights = None if importance is None else np.ascontiguousarray(importance, np.float32)
        address = ctypes.c_void_p() if weights is None else _address(weights)

        def packed(rows: slice) -> None:
            own = held[rows]
            places = (_address(own), _address(made[rows]))
            self.call("ggml_quantize_chunk", ctypes.c_size_t, kind.code, *places, 0, len(own), width, address)

        step = max(1, _THREAD_VALUES // width, -(-rows // _cores()))
        parts = [slice(start, start + step) for start in range(0, rows, step)]
        if len(parts) == 1:
            packed(parts[0])
        else:
            with ThreadPoolExecutor(len(parts)) as pool:  # a C function runs without Python's lock
                list(pool.map(packed, parts))
        return made

    def unpack(self, packed: Bytes, kind: GgmlType, width: int) -> Float32Array:
        """The matrix (rows, width) in FP32 that ``packed`` stores."""
        rows = len(packed)
        if kind.name in ("F32", "F16"):
            stored = np.ascontiguousarray(packed).view(np.float16 if kind.name == "F16" else np.float32)
            return stored.astype(np.float32).reshape(rows, width)
        made = np.empty((rows, width), np.float32)
        name = kind.name.lower() if kind.name[-1] != "K" else f"q{kind.name[1]}_K"
        self.call(f"dequantize_row_{name}", None, _address(np.ascontiguousarray(packed)), _address(made), rows * width)
        return made

    def round_trip(self, values: Float32Array, kind: GgmlType, importance: Float32Array | None = None) -> Float32Array:
        """Returns a matrix after it was packed in a format and unpacked again."""
        return self.unpack(self.pack(values, kind, importance), kind, values.shape[1])


def _cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _address(array: npt.NDArray[np.generic]) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def _drop(_level: int, _text: bytes, _data: object) -> None:
    """Drops the library's log."""


_quiet = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(_drop)


@functools.cache
def ggml() -> Ggml:
    """The library, loaded once. Raises like :class:`Ggml`."""
    return Ggml()


class Product:
    """Matrix products to be timed: each of ``copies`` matrices is multiplied by ``tokens`` vectors.

    The matrices (rows, width) are in one format. Their weights are in the buffer that llama.cpp chooses on a CPU: the
    first one that repacks them, else the usual one.

    Attributes:
        repacked: Whether the weights are in a special layout, to which they are converted when a model is loaded.
    """

    def __init__(self, kind: GgmlType, rows: int, width: int, *, tokens: int, copies: int, threads: int = 1) -> None:
        self._lib = lib = ggml()
        self._copies = copies
        random = np.random.default_rng(0)
        few = min(rows, 64)
        some = lib.pack(random.standard_normal((few, width)).astype(np.float32), kind, np.ones(width, np.float32))
        data = np.ascontiguousarray(some[np.arange(rows) % few])
        self._backend = lib.pointer("ggml_backend_cpu_init")
        lib.call("ggml_backend_cpu_set_n_threads", None, self._backend, threads)
        usual = lib.pointer("ggml_backend_cpu_buffer_type")
        self._contexts: list[ctypes.c_void_p] = []
        self._buffers: list[ctypes.c_void_p] = []
        device = lib.pointer("ggml_backend_reg_dev_get", lib.pointer("ggml_backend_cpu_reg"), 0)
        for place in (*self._special(device), usual):
            context, held = self._context(), self._context()
            inputs = lib.pointer("ggml_new_tensor_2d", context, 0, width, tokens)
            weights = [lib.pointer("ggml_new_tensor_2d", held, kind.code, width, rows) for _ in range(copies)]
            self._graph = lib.pointer("ggml_new_graph", context)
            nodes = [lib.pointer("ggml_mul_mat", context, weight, inputs) for weight in weights]
            for node in nodes:
                lib.call("ggml_build_forward_expand", None, self._graph, node)
            self._buffers = [
                lib.pointer("ggml_backend_alloc_ctx_tensors_from_buft", held, place),
                lib.pointer("ggml_backend_alloc_ctx_tensors_from_buft", context, usual),
            ]
            self.repacked = place is not usual
            if not self.repacked or lib.call("ggml_backend_dev_supports_op", ctypes.c_bool, device, nodes[0]):
                break
            self._free()
        for weight in weights:
            lib.call("ggml_backend_tensor_set", None, weight, _address(data), 0, data.nbytes)
        filled = random.standard_normal((tokens, width)).astype(np.float32)
        lib.call("ggml_backend_tensor_set", None, inputs, _address(filled), 0, filled.nbytes)

    def seconds(self) -> float:
        """Runs every matrix product once; returns this thread's processor seconds per product."""
        begun = time.thread_time()
        code = self._lib.call("ggml_backend_graph_compute", ctypes.c_int, self._backend, self._graph)
        spent = time.thread_time() - begun
        if code:
            raise MeasurementError(f"ggml could not compute a product (code {code})")
        return spent / self._copies

    def close(self) -> None:
        """Releases the memory."""
        self._free()
        if self._backend:
            self._lib.call("ggml_backend_free", None, self._backend)
            self._backend = ctypes.c_void_p()

    def _special(self, device: ctypes.c_void_p) -> list[ctypes.c_void_p]:
        """The buffers in which the processor's kernels repack weights, in llama.cpp's order."""
        name = ctypes.c_char_p(b"ggml_backend_dev_get_extra_bufts")
        found = self._lib.pointer("ggml_backend_reg_get_proc_address", self._lib.pointer("ggml_backend_cpu_reg"), name)
        if not found:
            return []
        listed = ctypes.CFUNCTYPE(ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p)(found.value or 0)(device)
        places: list[ctypes.c_void_p] = []
        while listed and listed[len(places)]:
            places.append(ctypes.c_void_p(listed[len(places)]))
        return places

    def _context(self) -> ctypes.c_void_p:
        self._contexts.append(self._lib.pointer("ggml_init", _Memory(4 << 20, None, True)))
        return self._contexts[-1]

    def _free(self) -> None:
        for buffer in self._buffers:
            self._lib.call("ggml_backend_buffer_free", None, buffer)
        for context in self._contexts:
            self._lib.call("ggml_free", None, context)
        self._buffers, self._contexts = [], []
