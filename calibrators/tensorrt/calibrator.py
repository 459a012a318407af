"""What TensorRT's four calibrators have in common: batches in, a cache out, and no failure lost.

TensorRT's bindings print and discard every exception of a calibrator, take it for the end of the data, and
write the cache from what came before. So the first failure is kept here, the data ends, the cache is not
written, and :meth:`Calibrator.raise_failure` raises it after the build. A build
asks the same of calibrators that others wrote.
"""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

import numpy as np

from calibrators.checks import FilePath, check_choice, check_path, positive_integer, warn_user
from calibrators.cuda import Device, current_device, open_device
from calibrators.data.batches import Batches
from calibrators.data.images.preprocessing import Preprocessing
from calibrators.data.inputs import InputSpec, Shape, fixed_batches
from calibrators.data.opening import open_batches
from calibrators.data.samples import SampleSizes
from calibrators.errors import Argument, CalibrationDataError, TableError, UnsupportedError, counted
from calibrators.files import check_writable, is_file
from calibrators.progress import CALIBRATING, progress_bar
from calibrators.tables.cache_origin import CacheOrigin, refuse_foreign_sidecar, runs_before_fusion
from calibrators.tables.formats.tensorrt_cache import parse
from calibrators.tables.table import CalibrationTable, Provenance
from calibrators.tensorrt.calibration_cache import read_cache, write_cache
from calibrators.tensorrt.feeding import CalibrationPass, Feeder, LastBatch, to_network

#: What to do with a cache that was not made from the same things.
Stale = Literal["refuse", "recalibrate"]


@dataclass(frozen=True)
class ServedBuild:
    """What a calibrator is told of the build that it serves: see :meth:`Calibrator.bind`.

    Attributes:
        model: Fingerprint of the model that is built; None where it is not known.
        before_fusion: Whether ``QuantizationFlag.CALIBRATE_BEFORE_FUSION`` is set.
        network_dtypes: Input name to its element type in TensorRT's network, see
            :func:`~calibrators.tensorrt.feeding.network_dtypes`. It is read when the first batch is
            asked for, so it may be filled once the network is parsed. Inputs that it lacks are fed in the
            type of the data.
        cancelled: Asked before every batch and while one is waited for. True ends the data with a
            ``KeyboardInterrupt``.
    """

    model: str | None = None
    before_fusion: bool = False
    network_dtypes: Mapping[str, np.dtype[Any]] = field(default_factory=dict)
    cancelled: Callable[[], bool] = lambda: False


class State(enum.Enum):
    """How far a calibrator is in the build that it serves."""

    NEW = "not prepared: the first callback prepares it"
    READY = "prepared, and no batch was asked for"
    FEEDING = "batches are given"
    FED = "all batches were given"
    FEEDING_AGAIN = "batches are given once more, because TensorRT reads the data a second time"
    FAILED = "a callback failed: there are no more batches, and no cache is written"


class _Told:
    """An attribute of the build that is served, which a builder of one's own may also set by itself."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, calibrator: Calibrator | None, _kind: type[Calibrator]) -> Any:
        return self if calibrator is None else getattr(calibrator._build, self._name)

    def __set__(self, calibrator: Calibrator, value: Any) -> None:
        calibrator._build = replace(calibrator._build, **{self._name: value})


class Calibrator:
    """Feeds a TensorRT calibrator. Its subclasses in :mod:`calibrators.tensorrt` are what TensorRT takes.

    Args:
        data: What :func:`calibrators.data.opening.open_batches` takes; None to use a finished ``cache`` only.
        inputs: The model's inputs; not needed without data.
        batch_size: Samples per batch; by default the model's fixed batch, else 32.
        limit: Use only this many samples.
        preprocessing: How raw images become inputs of the model.
        skip_bad: Leave out the files of a folder that cannot be read, such as damaged images, with their
            labels, and warn of them by name. By default the first such file is an error.
        last_batch: What becomes of a last batch that is not full: ``drop``, ``pad`` or ``refuse``.
        num_batches: How many batches the data must give; fewer are a failure, more are not read.
        cache: File to read the result from where it exists, and to write it to.
        stale: What to do with a cache that is of another algorithm, of unknown origin, or made from other
            things: ``refuse`` it with an error, or ``recalibrate``.
        model_fingerprint: Identifies the model in the cache's sidecar; where None, that is the model that is
            built, if ``build_int8_engine`` builds it.
        device: The GPU, or its index.
        progress: Show a progress bar on a terminal.

    Attributes:
        failure: The first exception of a callback; None while there is none.
        batches: How many batches TensorRT was given.
        table: The cache that was read or written, as a table; None before that, in every build anew.
        model_fingerprint: Identifies the model in the cache's sidecar; None where the user does not say, and
            the sidecar names the model that is built.
        state: How far the calibrator is in the build that it serves.
        built_model: ``model`` of the :class:`ServedBuild`. This one and the next may also be set one by one.
        before_fusion: See there.
        network_dtypes: See there.
        cancelled: See there.

    Raises:
        CalibrationDataError: The data does not fit the inputs or the options.
        OutputError: There is no cache yet, and its place cannot be written.
    """

    algorithm: ClassVar[str]
    tensorrt_version: ClassVar[str]
    settings: str | None = None
    built_model = _Told("model")
    before_fusion = _Told("before_fusion")
    network_dtypes = _Told("network_dtypes")
    cancelled = _Told("cancelled")

    def __init__(
        self,
        data: Any = None,
        inputs: Sequence[InputSpec] = (),
        *,
        batch_size: int | None = None,
        limit: int | None = None,
        preprocessing: Preprocessing | None = None,
        skip_bad: bool = False,
        last_batch: LastBatch = "drop",
        num_batches: int | None = None,
        cache: FilePath | None = None,
        stale: Stale = "refuse",
        model_fingerprint: str | None = None,
        device: Device | int = 0,
        progress: bool = True,
    ) -> None:
        if cache is not None:
            check_path("the cache", cache, CalibrationDataError)
        self._cache = None if cache is None else Path(cache)
        has_cache = self._cache is not None and is_file(self._cache)
        if data is None and not has_cache:
            raise CalibrationDataError("nothing to calibrate with: give data, or a cache that exists")
        if data is not None and not inputs:
            raise CalibrationDataError(
                f"the model's inputs are missing; give {Argument('inputs', '[InputSpec(...)]')}"
            )
        check_choice("last_batch", last_batch, get_args(LastBatch), CalibrationDataError)
        check_choice("stale", stale, get_args(Stale), CalibrationDataError)
        if num_batches is not None:
            num_batches = positive_integer("num_batches", num_batches)
        self._data: Batches | None = None
        if data is not None:
            read = inputs if last_batch == "drop" else _with_open_batch(inputs)
            if batch_size is None and read is not inputs:
                batch_size = next(iter(fixed_batches(inputs)))
            self._data = open_batches(
                data,
                read,
                batch_size=batch_size,
                limit=limit,
                preprocessing=preprocessing,
                skip_bad=skip_bad,
                split="train",
            )
        if self._cache is not None and not has_cache:
            check_writable(self._cache)
        self._inputs, self._last_batch, self._num_batches = tuple(inputs), last_batch, num_batches
        self._stale, self._device, self._progress = stale, device, progress
        self.model_fingerprint = model_fingerprint
        self._build = ServedBuild()
        self.state = State.NEW
        self.failure: BaseException | None = None
        self.batches = 0
        self.table: CalibrationTable | None = None
        self._cached: bytes | None = None
        self._shapes: dict[str, Shape] | None = None
        self._pass: CalibrationPass | None = None
        self._feeder: Feeder | None = None
        self._bar = contextlib.ExitStack()

    # For the builder.

    def bind(self, build: ServedBuild) -> None:
        """Tells the calibrator which build it serves, and prepares it; to be called once before every build.

        Args:
            build: What is known of the build.

        Raises:
            TrtInt8Error: As :meth:`prepare` does.
        """
        self._build = build
        self.prepare()

    @property
    def implementation(self) -> Calibrator:
        """What TensorRT is given."""
        return self

    @property
    def was_asked(self) -> bool:
        """Whether TensorRT asked for a batch, or took the cache."""
        return bool(self.batches) or self.table is not None

    @property
    def device_index(self) -> int:
        """Index of the GPU that batches are uploaded to."""
        return self._device if isinstance(self._device, int) else self._device.ordinal

    @property
    def device(self) -> Device:
        """The GPU that batches are uploaded to.

        Raises:
            GpuUnavailableError: There is no driver, no GPU, or none of that index.
            EngineError: The driver cannot use the GPU.
        """
        return open_device(self._device) if isinstance(self._device, int) else self._device

    def context(self) -> AbstractContextManager[None]:
        """The CUDA context of that GPU.

        To build in it, because batches are freed while TensorRT still calibrates. PyCUDA then makes the
        context current that it entered last, which is another one where the primary one was made current
        without PyCUDA.
        """
        return self.device.active()

    def prepare(self) -> None:
        """Checks the cache before minutes of work, and forgets an earlier failure and an earlier result.

        Where there is a cache and data, the data is read once to compare its fingerprint.

        Raises:
            TableError: The cache is malformed, stale or of another algorithm, and is to be refused.
            CalibrationDataError: The data does not fit the model.
            OutputError: The cache is to be made again, and cannot be written.
        """
        self._rewind(State.NEW)
        self.table = None
        self._cached = self._read_cache()
        self.state = State.READY

    def shapes(self) -> dict[str, Shape] | None:
        """The shape of every input in a batch, read from the first one; None without data.

        Raises:
            CalibrationDataError: There is no batch, or it does not fit the model.
        """
        if self._shapes is None and self._data is not None:
            self._shapes = self._opened().shapes
        return self._shapes

    def input_sizes(self) -> dict[str, SampleSizes]:
        """The sizes of samples by input, for inputs that leave some open besides the number of samples.

        Raises:
            CalibrationDataError: There is no batch, or it does not fit the model.
        """
        shapes = self.shapes() or {}
        return {
            spec.name: SampleSizes.of(shapes[spec.name])
            for spec in self._inputs
            if spec.name in shapes and spec.has_open_sizes
        }

    def raise_failure(self, build_error: BaseException | None = None) -> None:
        """Raises what a callback failed with, if one did; to be called after every build.

        Args:
            build_error: What the build failed with, to be chained.
        """
        self.close()
        if self.failure is not None:
            raise self.failure from build_error

    def close(self) -> None:
        """Frees the GPU's memory; a second time does nothing."""
        feeder, self._feeder = self._feeder, None
        with self._bar:
            if feeder is not None:
                feeder.close()

    # For TensorRT. Whatever leaves these is lost, so nothing does.

    def get_batch_size(self) -> int:
        """Samples per batch."""
        try:
            shapes = self.shapes() or {}
        except BaseException as error:  # noqa: BLE001
            self._fail(error)
            return 1
        return next((shape[0] for shape in shapes.values() if shape), 1)

    def get_batch(self, names: list[str]) -> list[int] | None:
        """Device addresses of the next batch, in the order of ``names``; None at the end of the data."""
        if self.state is State.FAILED:
            return None
        try:
            return self._next(names)
        except BaseException as error:  # noqa: BLE001
            self._fail(error)
            return None

    def read_calibration_cache(self) -> bytes | None:
        """The cache where there is one that is not stale."""
        if self.state is State.FAILED:
            return None
        try:
            if self.state is State.NEW:
                self.prepare()
        except BaseException as error:  # noqa: BLE001
            self._fail(error)
            return None
        return self._cached

    def write_calibration_cache(self, cache: memoryview) -> None:
        """Keeps TensorRT's result, unless the calibration failed."""
        # The view is of memory that TensorRT uses again.
        data = bytes(cache)
        if self.state is State.FEEDING:
            self._fail(
                CalibrationDataError(
                    f"the calibration ended at batch {self.batches}, before the data did, so its cache is "
                    "not kept; give limit or num_batches, or correct the get_batch of your own calibrator"
                )
            )
        if self.state not in (State.FED, State.FEEDING_AGAIN):
            return
        try:
            origin = self._origin(self._opened())
            if self._cache is not None:
                write_cache(self._cache, data, origin)
            self.table = _table(data, origin, self.input_sizes())
            dead = [name for name, amax in self.table.amax.items() if not amax]
            if dead:
                others = f" and {counted(len(dead) - 1, 'other tensor')}" if len(dead) > 1 else ""
                warn_user(f"tensor '{dead[0]}'{others} had only zeros in all batches; check the data")
        except BaseException as error:  # noqa: BLE001
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        self.failure, self.state = error, State.FAILED
        with contextlib.suppress(Exception):
            self.close()

    # The data.

    def _next(self, names: Sequence[str]) -> list[int] | None:
        if self._build.cancelled():
            raise KeyboardInterrupt
        if self.state is State.FED:
            self._rewind(State.FEEDING_AGAIN)
        if self._feeder is None:
            self._start(names)
        assert self._feeder is not None
        pointers = self._feeder.next(self._build.cancelled)
        if pointers is None:
            self._end()
            return None
        self.batches = self._feeder.batches
        self._advance(1)
        return [pointers[name] for name in names]

    def _rewind(self, state: State) -> None:
        """Goes back to the first batch, and forgets a failure."""
        self.close()  # what an earlier build left that was given up
        self.state, self.failure, self.batches = state, None, 0
        if self._pass is not None and self._pass.started:
            self._pass = None

    def _opened(self) -> CalibrationPass:
        if self._data is None:
            raise CalibrationDataError(
                f"TensorRT does not accept the cache '{self._cache}' and asks for data, but there is none; "
                "give the calibrator data"
            )
        self._pass = self._pass or CalibrationPass(
            self._data,
            self._inputs,
            last_batch=self._last_batch,
            num_batches=self._num_batches,
        )
        return self._pass

    def _start(self, names: Sequence[str]) -> None:
        opened = self._opened()
        unknown = [name for name in names if name not in opened.shapes]
        if unknown:
            raise CalibrationDataError(
                f"TensorRT asks for the input '{unknown[0]}', and the data has "
                f"{', '.join(map(repr, opened.shapes))}; name the arrays after the network's inputs"
            )
        device = self.device
        problem = device.context_problem()
        if problem is not None:
            raise UnsupportedError(f"TensorRT cannot read the batches: {problem}")
        samples = self._data.num_samples if self._data else None
        total = samples // opened.batch_size if samples and not self._num_batches else self._num_batches
        self._advance = self._bar.enter_context(progress_bar(CALIBRATING, total, enabled=self._progress))
        if self.state is not State.FEEDING_AGAIN:
            self.state = State.FEEDING
        dtypes = self._build.network_dtypes
        self._feeder = Feeder((to_network(feed, dtypes) for feed in opened), device)

    def _end(self) -> None:
        self.state = State.FED
        self.close()
        for finding in self._opened().finish():
            warn_user(finding)

    # The cache.

    def _read_cache(self) -> bytes | None:
        if self._cache is None or not is_file(self._cache):
            return None
        opened = None
        if self._data is not None:  # all of it is read, to know its fingerprint
            opened, self._pass = self._opened(), None
            self._shapes = opened.shapes
            for _feed in opened:
                pass
        wanted = self._origin(opened)
        try:
            data = read_cache(self._cache, wanted)
        except TableError as error:
            if self._stale == "refuse" or self._data is None:
                raise
            # Now, and not when the calibration is done.
            refuse_foreign_sidecar(check_writable(self._cache))
            warn_user(f"calibrating again: {error.template}", note=True)
            return None
        self.table = _table(data, wanted, self.input_sizes()) if data is not None else None
        return data

    def _origin(self, data: CalibrationPass | None) -> CacheOrigin:
        return CacheOrigin(
            calibrator=self.algorithm,
            tensorrt=self.tensorrt_version,
            model=self.model_fingerprint or self._build.model,
            data=data.fingerprint if data else None,
            samples=data.samples if data else None,
            batch_size=data.batch_size if data else None,
            before_fusion=runs_before_fusion(self.algorithm, forced=self._build.before_fusion),
            settings=self.settings,
        )


def _with_open_batch(inputs: Sequence[InputSpec]) -> Sequence[InputSpec]:
    """The inputs as if they took batches of any size, where all have the same fixed one.

    Of data for a fixed batch only whole batches are read, and the last one would be left out unseen.
    """
    if len(fixed_batches(inputs)) != 1 or any(spec.static_batch is None for spec in inputs):
        return inputs
    return [replace(spec, shape=(None, *spec.shape[1:])) for spec in inputs if spec.shape]


def _table(data: bytes, origin: CacheOrigin, sizes: Mapping[str, SampleSizes]) -> CalibrationTable:
    content = parse(data, "the calibration cache")
    versions = {"tensorrt": origin.tensorrt}
    provenance = Provenance(origin.model, origin.data, origin.samples, versions, sizes)
    return CalibrationTable.from_cache(content, provenance)


class ForeignCalibrator:
    """A calibrator of which TensorRT's interface is all that is known.

    Args:
        implementation: An object of a class that derives from TensorRT's ``IInt8Calibrator``.

    Attributes:
        implementation: What TensorRT is given.
        table: None, because it keeps none.
        was_asked: True, because it does not say.
    """

    table: None = None
    was_asked = True

    def __init__(self, implementation: Any) -> None:
        self.implementation = implementation

    @property
    def device_index(self) -> int | None:
        """Index of the GPU whose context is current, where it mostly uploads to; None where there is none."""
        return current_device()

    def context(self) -> AbstractContextManager[None] | None:
        """The current CUDA context, where it mostly allocates; None where there is none."""
        return None if current_device() is None else contextlib.nullcontext()

    def bind(self, build: ServedBuild) -> None:
        """Does nothing: TensorRT's interface has no place for what is known of a build."""

    def shapes(self) -> None:
        """None: the shapes of its batches are not known."""

    def input_sizes(self) -> dict[str, SampleSizes]:
        """Nothing: the sizes of its samples are not known."""
        return {}

    def raise_failure(self, build_error: BaseException | None = None) -> None:
        """Does nothing: TensorRT tells of no failure."""

    def close(self) -> None:
        """Does nothing."""


#: What a build takes ranges from as TensorRT computes them.
AnyCalibrator = Calibrator | ForeignCalibrator


def as_any_calibrator(calibrator: Any) -> AnyCalibrator:
    """A calibrator of this package as it is, any other one with its methods."""
    return calibrator if isinstance(calibrator, Calibrator) else ForeignCalibrator(calibrator)
