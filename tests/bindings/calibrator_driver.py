"""Calls a Python calibrator as TensorRT's C++ does: through the virtual functions of the bound object.

So the bindings' own trampolines run, with all that they do to arguments, results and exceptions.
"""

import ctypes

import tensorrt

# A pybind11 object holds the pointer to its C++ object right behind the two words of every Python object.
_VALUE_OFFSET = 16
_BUILT_FOR_10 = int(tensorrt.__version__.split(".")[0]) >= 10
# TensorRT 10 put the virtual functions of an interface class before the calibrator's own, two of which the
# legacy calibrator's count skips.
_FIRST = 4 if _BUILT_FOR_10 else 0
_LEGACY = 2 if _BUILT_FOR_10 else 0


class CalibratorDriver:
    """TensorRT's side of a calibrator."""

    def __init__(self, calibrator):
        self._calibrator = calibrator

    def _call(self, slot, result, *arguments):
        this = ctypes.c_void_p.from_address(id(self._calibrator) + _VALUE_OFFSET).value
        table = ctypes.c_void_p.from_address(this).value
        address = ctypes.c_void_p.from_address(table + ctypes.sizeof(ctypes.c_void_p) * slot).value
        function = ctypes.CFUNCTYPE(result, ctypes.c_void_p, *map(type, arguments))(address)
        return function(this, *arguments)

    def batch_size(self):
        return self._call(_FIRST, ctypes.c_int32)

    def batch(self, *names):
        """Whether there is a batch, and its device addresses."""
        addresses = (ctypes.c_void_p * len(names))()
        texts = (ctypes.c_char_p * len(names))(*(name.encode() for name in names))
        more = self._call(
            _FIRST + 1,
            ctypes.c_bool,
            ctypes.c_void_p(ctypes.addressof(addresses)),
            ctypes.c_void_p(ctypes.addressof(texts)),
            ctypes.c_int32(len(names)),
        )
        return more, list(addresses)

    def read_cache(self):
        length = ctypes.c_size_t()
        address = self._call(_FIRST + 2, ctypes.c_void_p, ctypes.c_void_p(ctypes.addressof(length)))
        return ctypes.string_at(address, length.value) if address else None

    def write_cache(self, data):
        memory = ctypes.create_string_buffer(data, len(data))
        self._call(_FIRST + 3, None, ctypes.c_void_p(ctypes.addressof(memory)), ctypes.c_size_t(len(data)))
        # TensorRT uses its memory again: who kept a view of it has this now.
        ctypes.memset(memory, 0xFF, len(data))

    def algorithm(self):
        return self._call(_FIRST + 4, ctypes.c_int32)

    def quantile(self):
        return self._call(_LEGACY + 7, ctypes.c_double)

    def regression_cutoff(self):
        return self._call(_LEGACY + 8, ctypes.c_double)

    def calibrate(self, names, read):
        """What TensorRT does: all batches, each looked at with ``read(addresses)`` while it is valid."""
        seen = []
        while True:
            more, addresses = self.batch(*names)
            if not more:
                return seen
            seen.append(read(addresses))
