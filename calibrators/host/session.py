"""ONNX Runtime sessions, opened in one way everywhere.

How many threads a computation may use, and what is worth handing to them.
"""

from __future__ import annotations

import ctypes
import functools
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import numpy as np

from calibrators.checks import positive_integer
from calibrators.data.feeds import Array, NamedArrays
from calibrators.errors import Argument, CalibrationDataError, ModelError
from calibrators.host.weights import LightModel

#: What ONNX Runtime says where one of its optimizations removes a tensor that is wanted as an output.
_LOST_OUTPUT = "Failed to find node output"


def open_session(
    model: LightModel | bytes | Path,
    *,
    optimize: bool,
    threads: int | None = None,
    data_folder: Path | None = None,
    weights: NamedArrays | None = None,
    one_of_many: bool = False,
    keep_layout: bool = False,
    pack_weights: bool = True,
    providers: Sequence[Any] = ("CPUExecutionProvider",),
) -> Any:
    """Opens a model, on the CPU by default.

    Args:
        model: The model, serialized or not, or its path.
        optimize: True runs all graph optimizations except those that replace or join Q/DQ pairs: every pair
            rounds as it stands in the model, and layers compute in float on quantized values. False runs the
            nodes as they stand, which rounds differently in the last bits of float sums. Operators that
            compute on integers need True: only then are their sums exact on every processor. Products need
            the zero point of constant int8 weights, too: without it ONNX Runtime before 1.30 can end the
            process.
        threads: Threads per operator; ONNX Runtime's choice where None.
        data_folder: The folder of the external data of a serialized model.
        weights: Values of initializers that a serialized model declares as external. The caller keeps them as
            long as the session, as those of a model in two parts.
        one_of_many: Whether the session runs alternately with many others. Its memory is then returned to the
            system after each run.
        keep_layout: Whether activations keep the layout that the model gives them. ONNX Runtime computes
            convolutions in a layout of its own, which is faster from one to the next; what enters and leaves
            a model is copied, which in a model of one convolution takes more than is won, and memory for
            three more activations.
        pack_weights: Whether a second copy of the weights of products is made, in the order in which they are
            read. It takes as much memory again, and time, which few runs do not win back.
        providers: ONNX Runtime's execution providers, the preferred one first, each a name or a name with its
            options. One that cannot be loaded is left out.

    Returns:
        An ``onnxruntime.InferenceSession``.

    Raises:
        ModelError: ONNX Runtime refuses the model.
    """
    import onnxruntime as ort

    source = model
    if isinstance(model, LightModel):
        used = model.used()
        source, weights = used.message.SerializeToString(), used.weights

    def opened(optimize: bool) -> Any:
        options = _session_options(
            optimize=optimize,
            threads=threads,
            one_of_many=one_of_many,
            keep_layout=keep_layout,
            pack_weights=pack_weights,
        )
        if data_folder is not None:
            options.add_session_config_entry(
                "session.model_external_initializers_file_folder_path", os.fspath(data_folder)
            )
        if weights:
            values = [ort.OrtValue.ortvalue_from_numpy(array) for array in weights.values()]
            options.add_external_initializers(list(weights), values)
        return ort.InferenceSession(
            os.fspath(source) if isinstance(source, Path) else source,
            options,
            providers=list(providers),
            # Of two pairs in a row it keeps one, with another scale.
            disabled_optimizers=["DoubleQDQPairsRemover"],
            # A provider that fails would be replaced without an error; older versions do so regardless.
            enable_fallback=0,
        )

    try:
        try:
            return opened(optimize)
        except Exception as error:
            # A Transpose that goes into a Gemm takes along what the Gemm gave, though it is an output.
            if not optimize or _LOST_OUTPUT not in str(error):
                raise
            return opened(False)
    except Exception as error:
        raise ModelError(f"ONNX Runtime cannot run the model: {first_line(error)}") from error


def _session_options(
    *, optimize: bool, threads: int | None, one_of_many: bool, keep_layout: bool, pack_weights: bool
) -> Any:
    """Options of ONNX Runtime; see :func:`open_session`."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4  # what fails is raised, and is not written to the terminal as well
    level = ort.GraphOptimizationLevel
    most = level.ORT_ENABLE_EXTENDED if keep_layout else level.ORT_ENABLE_ALL
    options.graph_optimization_level = most if optimize else level.ORT_DISABLE_ALL
    # Without it, processors that have AVX2 but no VNNI add pairs of uint8 x int8 products in int16, which
    # saturates. ONNX Runtime exchanges the operators' weights for uint8 ones while it optimizes the graph.
    options.add_session_config_entry("session.x64quantprecision", "1")
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    # A pattern puts all tensors of a run into one block, from the second run on; the blocks of the first
    # stay. With all activations as outputs that doubles the memory, and saves no time.
    options.enable_mem_pattern = False
    # Threads that have nothing to run would wait in a loop, on processors that others could use.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if threads is not None:
        options.intra_op_num_threads = threads
    if not pack_weights:
        options.add_session_config_entry("session.disable_prepacking", "1")
    if one_of_many:
        # Every arena would keep what its session once needed.
        options.enable_cpu_mem_arena = False
    return options


def run_in_place(session: Any, names: Sequence[str], feed: NamedArrays) -> list[Array]:
    """Runs a model and leaves its outputs where ONNX Runtime put them.

    ``session.run`` copies every output into fresh memory, which for all activations of a ResNet-50 takes
    half as long as running it.

    Args:
        session: From :func:`open_session`.
        names: The outputs that are wanted.
        feed: Input name to array.

    Returns:
        Their values, read-only. The memory goes back to ONNX Runtime when the arrays are gone.
    """
    import onnxruntime as ort

    if not names:
        return []
    values = {name: ort.OrtValue.ortvalue_from_numpy(array) for name, array in feed.items()}
    return [as_array(output) for output in session.run_with_ort_values(list(names), values)]


def run_session(session: Any, feed: NamedArrays, names: Sequence[str] | None = None) -> list[Array]:
    """Runs a model on arrays.

    Args:
        session: From :func:`open_session`.
        feed: Input name to array.
        names: The outputs that are wanted; all where None.

    Returns:
        Their values, in memory of their own.
    """
    outputs: list[Array] = session.run(names, dict(feed))
    return outputs


def give_back_freed_memory() -> None:
    """Returns freed memory to the system, where the C library can be asked to.

    glibc keeps what lies between arrays that are still in use. Where arrays of many sizes come and go, it
    keeps several times as much as these take.
    """
    trim = getattr(_c_library(), "malloc_trim", None)
    if trim is not None:
        trim(0)


@functools.cache
def _c_library() -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL(None)
    except (OSError, TypeError):  # Windows
        return None


class _Memory:
    """The interface by which NumPy reads an object's memory; keeps the tensor alive."""

    def __init__(self, value: Any) -> None:
        self._value = value
        self.__array_interface__ = {
            "data": (value.data_ptr(), True),
            "shape": tuple(value.shape()),
            "typestr": "<f4",
            "version": 3,
        }


def as_array(value: Any) -> Array:
    """A tensor of ONNX Runtime's, of the type that it has; float32 is its own memory, read-only.

    What one part of a model hands to the next may be of any type. Histograms take values as float32
    themselves.
    """
    # Of a tensor without elements, NumPy 2.2 does not read the address.
    in_place = value.data_type() == "tensor(float)" and all(value.shape())
    return np.asarray(_Memory(value)) if in_place else value.numpy()


#: What ONNX Runtime writes around its words: where in its sources something failed, and of which node.
_IN_A_NODE = re.compile(
    r"(?:Exception during initialization: )?"
    r"(?:Non-zero status code returned while running (?P<ran>\w+) node\. Name:'(?P<name>[^']*)' Status "
    r"Message: |Node \((?P<node>[^)]*)\) Op \((?P<operator>\w+)\) )?(?P<words>.*)",
    re.DOTALL,
)
_SOURCE = re.compile(
    r"^/\S+:\d+ .*?(?: was false\. |\) (?=[A-Z]))|^/\S+:\d+ |\[(?:Shape|Type)InferenceError\] "
)


def first_line(error: BaseException) -> str:
    """What an exception of ONNX Runtime says, in one line that begins with the node that failed.

    Files and functions of ONNX Runtime's sources are left out.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    line = lines[0] if lines else type(error).__name__
    if line.startswith("[ONNXRuntimeError]"):
        line = line.split(" : ", 3)[-1]
    found = _IN_A_NODE.fullmatch(line)
    assert found is not None, "it matches anything"
    words = _SOURCE.sub("", found["words"]).strip() or line
    operator, name = found["ran"] or found["operator"], found["name"] or found["node"]
    return f"node '{name}' ({operator}): {words}" if operator else words


#: Where a container's processor quota stands (cgroup 2).
_QUOTA = Path("/sys/fs/cgroup/cpu.max")

#: Threads that may be asked for: with thousands, ONNX Runtime hangs or crashes.
_FEW_THREADS, _THREADS_PER_PROCESSOR = 64, 4

#: Bytes of arrays that take longer than handing them to threads: to round 3 MB of weights in 56 arrays, two
#: threads take three times as long as one.
_WORTH_THREADS = 16 << 20

#: The most parts of a batch that are run at once; with more threads, several work on each. Every part takes
#: time in Python, for which the threads wait for each other.
_MOST_AT_ONCE = 4

_Argument = TypeVar("_Argument")
_Result = TypeVar("_Result")
_Parameters = ParamSpec("_Parameters")


def available_threads(quota_file: Path = _QUOTA) -> int:
    """The processors that this process may use: those that exist, less what affinity or a container forbids.

    ONNX Runtime's own choice counts the machine's cores, and pins a thread to each: in a container of two
    processors on a machine of sixty-four, that is sixty-four threads that wait for each other.

    Args:
        quota_file: Holds the quota and the period, or ``max`` and the period.

    Returns:
        At least 1.
    """
    affinity = getattr(os, "sched_getaffinity", None)  # Linux only
    processors = len(affinity(0)) if affinity else os.cpu_count() or 1
    try:
        quota, period = quota_file.read_text().split()
        allowed = math.ceil(int(quota) / int(period))
    except (OSError, ValueError, ZeroDivisionError):  # no quota, or no cgroup
        return processors
    return max(1, min(processors, allowed))


def runs_at_once(threads: int, rows: int) -> int:
    """How many parts of a batch are run at once, where samples may be run in any company.

    The threads of one run wait for each other at every operator, those of several runs do not.

    Args:
        threads: How many threads there are.
        rows: How many samples the batches usually have.

    Returns:
        At least 1.
    """
    return max(1, min(threads, rows, _MOST_AT_ONCE))


def threads_of_session(threads: int, runs: int) -> int:
    """How many threads of its own a session needs for several runs at once.

    Args:
        threads: How many threads there are in all.
        runs: How many runs go on at once; each brings the thread that it is called in.
    """
    return threads - (runs - 1)


def check_threads(threads: int | None) -> None:
    """Refuses a number of threads that makes no sense; None leaves the choice to others.

    Raises:
        CalibrationDataError: It is no integer, less than 1, or far more than there are processors.
    """
    if threads is None:
        return
    count = positive_integer("threads", threads)
    most = max(_FEW_THREADS, _THREADS_PER_PROCESSOR * (os.cpu_count() or 1))
    if count > most:
        raise CalibrationDataError(
            f"{Argument('threads')} is {count}, and {most} are the most on this machine; give fewer, or "
            "leave it out"
        )


def map_arrays(
    function: Callable[[_Argument], _Result],
    arguments: Iterable[_Argument],
    nbytes: int,
    threads: int | None = None,
) -> Iterator[_Result]:
    """Applies a function to arrays in turn, in several threads where the arrays are large.

    Args:
        function: The function, which may be called in several threads at once. They save time where NumPy or
            hashing takes most of it.
        arguments: What it is called with in turn.
        nbytes: Bytes of all arrays that it works on.
        threads: The most threads; all that this process may use where None.

    Yields:
        The results, in the order of the arguments.
    """
    if nbytes < _WORTH_THREADS:
        yield from map(function, arguments)
        return
    with ThreadPoolExecutor(threads or available_threads(), "trtint8-arrays") as pool:
        yield from pool.map(function, arguments)


def in_thread(
    function: Callable[_Parameters, _Result], *args: _Parameters.args, **kwargs: _Parameters.kwargs
) -> Future[_Result]:
    """Calls a function in a thread of its own while the caller goes on.

    Args:
        function: The function.
        args: What it is called with.
        kwargs: What it is called with by name.

    Returns:
        Its result, or what it raises; the process does not end before it returns.
    """
    executor = ThreadPoolExecutor(1, "trtint8-thread")
    called = executor.submit(function, *args, **kwargs)
    executor.shutdown(wait=False)
    return called
