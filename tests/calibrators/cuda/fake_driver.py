"""A driver library that is none: two GPUs, or the failures that machines show."""

from types import SimpleNamespace


def driver(init=0, count=1, get=0):
    """Stands in for the driver library: two GPUs, or the failures that machines show."""

    def put(value, result=0):
        def call(pointer, *_):
            pointer._obj.value = value
            return result

        return call

    def error_name(status, pointer):
        if status == 100:
            pointer._obj.value = b"CUDA_ERROR_NO_DEVICE"

    def name(buffer, _size, _device):
        buffer.value = b"NVIDIA Test"
        return 0

    def attribute(pointer, which, _device):
        pointer._obj.value = {75: 8, 76: 9}[which]
        return 0

    return SimpleNamespace(
        cuInit=lambda _flags: init,
        cuDeviceGetCount=put(count),
        cuDriverGetVersion=put(12040),
        cuGetErrorName=error_name,
        cuDeviceGet=lambda pointer, ordinal: put(ordinal, get)(pointer),
        cuDeviceGetName=name,
        cuDeviceGetAttribute=attribute,
    )
