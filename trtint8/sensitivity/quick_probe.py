"""What one batch shows of every layer, from one pass backwards through the network.

The directions in the space of the outputs are random. Whether a network may be run sample by sample is found
out by running it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeAlias, TypeVar

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from calibrators.data.feeds import Array, FeedDict, Flags, Float32s, Ints, batch_rows, even_parts, joined
from calibrators.errors import CalibrationDataError
from calibrators.host.session import available_threads
from trtint8.models.session import ModelSession, open_graph_model
from trtint8.models.shapes import declared_sizes, open_inputs
from trtint8.sensitivity.effects import (
    ALL,
    ONLY,
    Draw,
    EffectMeter,
    draw,
    output_scales,
    share_to_draw,
    variants_of,
)
from trtint8.sensitivity.error_network import ErrorNetwork, Responses, random_signs
from trtint8.sensitivity.gradients.rule import NoGradientError
from trtint8.sensitivity.local import LocalMeter, LocalNetwork
from trtint8.simulation.networks import Quantizer, quantized_network
from trtint8.simulation.segments import Network, Tensors

#: Samples with which layers are measured by themselves, because their errors hardly differ from sample to
#: sample, and from which the scales of the outputs are taken.
_LOCAL_SAMPLES = 2

#: Where several runs go on at once: how many times as many samples as with gradients one run of the quantized
#: or the float network takes, which keep few tensors at a time. With eight times as many, a vision
#: transformer takes 22 MiB more and no less time.
_TIMES_WITHOUT_GRADIENTS = 4

#: Samples of each run with which the time is estimated.
_TIMED_SAMPLES = 4

#: Of so many samples one shows its class with each layer alone in INT8: where all samples show what layers
#: cost, and where some do.
_PER_CLASS, _PER_CLASS_DRAWN = 8, 16

#: How many times the noise of the quantized network gradients may predict for the first samples. Of two
#: samples with nearly certain classes it was 75 times, and good for 32; of a spectrogram 25,000 times.
_CONTRADICTED = 1000.0

#: Bytes of networks of errors for other sizes of inputs than the present batch has, that stay open.
_KEPT = 256 << 20

_Result = TypeVar("_Result")

#: Names of inputs, and the shape of one sample of each.
_Sizes: TypeAlias = tuple[tuple[str, tuple[int, ...]], ...]


class QuickNetwork:
    """A model that is ready to be measured in a few runs per batch, whatever the number of its layers.

    Args:
        graph_model: From :func:`trtint8.models.model.prepare`; not changed.
        quantizer: How the model's tensors are quantized.
        network: The same model cut at its layers.
        samples: How many samples will be measured in all, where that is known.
        every_sample: Whether each of them shows what the layers cost. Otherwise, where samples are small and
            many, a part of them does (:mod:`trtint8.sensitivity.effects`).
        threads: Threads per operator; ONNX Runtime's choice where None.

    Raises:
        NoGradientError: The gradient of one of the network's operators is not known. Where the network leaves
            the size of an input open, the first batch tells.
    """

    def __init__(
        self,
        graph_model: ir.Model,
        quantizer: Quantizer,
        network: Network,
        *,
        samples: int | None = None,
        every_sample: bool = False,
        threads: int | None = None,
    ) -> None:
        self._graph_model, self._quantizer, self._network = graph_model, quantizer, network
        self._samples, self._threads = samples, threads
        self._every_sample = every_sample
        self._names = tuple(layer.name for layer in network.layers)
        self._open_inputs = open_inputs(graph_model)
        #: By the sizes of inputs that the network leaves open; the last one is that of the present batch.
        self._networks: dict[_Sizes, ErrorNetwork] = {}
        if not self._open_inputs:
            self._networks[()] = ErrorNetwork(graph_model, quantizer, samples=samples)
        self._local: tuple[Tensors, LocalMeter] | None = None
        self._int8: ModelSession | None = None
        self._float: ModelSession | None = None
        self._alone: dict[str, ModelSession] = {}

    @property
    def _errors(self) -> ErrorNetwork:
        assert self._networks, "no batch has been looked at yet"
        return next(reversed(self._networks.values()))

    @property
    def _runs_at_once(self) -> int:
        return self._errors.runs_at_once

    def _adapt(self, feed: FeedDict) -> None:
        """Makes the network of errors for the shapes in a batch, which gradients depend on."""
        sizes = tuple((name, feed[name].shape[1:]) for name in self._open_inputs)
        network = self._networks.pop(sizes, None)
        if network is None:
            # Those used last stay, as a decoder of text has the same sizes again with the next text.
            rows = batch_rows(feed) or 1
            while self._networks and (len(self._networks) + 1) * self._errors.memory(rows) > _KEPT:
                del self._networks[next(iter(self._networks))]
            batch = {name: (0, *shape) for name, shape in sizes}
            network = ErrorNetwork(self._graph_model, self._quantizer, batch, self._samples)
        self._networks[sizes] = network

    def _open(self, feed: FeedDict) -> None:
        """Opens the networks for batches like this one, where that is not done yet."""
        if self._errors.is_open:
            return
        threads, runs_at_once = self._threads, 1
        available = threads or available_threads()
        parts = self._parts(batch_rows(feed) or 1, self._errors.samples_per_run)
        if self._errors.fits_beside_others and len(parts) >= available:
            # The threads of one run wait for each other at every operator; one thread for each is faster.
            runs_at_once, threads = available, 1
        # The largest one first: to open it takes several times what stays of it.
        self._errors.open(threads, runs_at_once)
        if self._int8 is None:
            self._int8 = self._quantized(self._quantizer, threads)
            self._alone = {
                name: self._quantized(self._quantizer.only([name]), threads) for name in self._errors.picking
            }
            if self._share < 1:
                self._float = open_graph_model(self._graph_model, threads=threads)

    @property
    def _share(self) -> float:
        """The share of the samples that show what layers cost."""
        if self._every_sample or not self._errors.fits_beside_others:
            return 1.0
        return share_to_draw(self._samples, self._errors.sample_size)

    def _quantized(self, quantizer: Quantizer, threads: int | None) -> ModelSession:
        """Opens the network in INT8."""
        quantized = quantized_network(self._graph_model, quantizer)
        return open_graph_model(quantized, threads=threads, used_up=True)

    def begin(self, feed: FeedDict) -> tuple[Tensors, int, float]:
        """Runs the first samples of a batch.

        Args:
            feed: The batch.

        Returns:
            The float network's outputs for these samples, how many they are, and an estimate of the seconds
            for the whole batch.

        Raises:
            NoGradientError: The gradient of an operator is not known, the samples of the batch cannot be told
                apart, or gradients predict far more noise than there is.
            CalibrationDataError: ONNX Runtime fails on the batch, or gradients are not finite.
        """
        self._adapt(feed)
        rows = batch_rows(feed) or 1
        if self._mixes(rows):
            if not may_run_one_by_one(self._graph_model, feed, self._threads):
                raise NoGradientError("the samples of a batch cannot be told apart in the network's outputs")
            reference, samples, seconds = self.begin(_taken(feed, slice(1)))
            return reference, samples, seconds * rows
        reference, local = self._local = self._measure_local(feed, _LOCAL_SAMPLES)
        self._open(feed)
        size = min(self._errors.samples_per_run, _TIMED_SAMPLES)
        first = _taken(feed, slice(size * self._runs_at_once)) if self._errors.splits else feed
        variants, scales = (
            variants_of(self._names, predicted=True),
            output_scales(self._network.split(reference)),
        )
        trial = EffectMeter(variants, scales, classes=False, labelled=False, predicted=True)
        # These runs take new memory, so later ones are somewhat faster.
        start = time.perf_counter()
        self.measure(first, None, _LOCAL_SAMPLES, trial)
        seconds = time.perf_counter() - start
        measured, predicted = trial.noise(ALL), sum(trial.noise((ONLY, name)) for name in self._names)
        # A logarithm of what is nearly zero, as in spectrograms, has slopes without bound, but no such noise.
        if predicted > _CONTRADICTED * measured > 0:
            level = 10 * math.log10(predicted / measured)
            raise NoGradientError(
                f"by their gradients, layers have {level:.0f} dB more noise than the quantized network"
            )
        return reference, local.samples, seconds * rows / (batch_rows(first) or 1)

    def _mixes(self, rows: int) -> bool:
        """Whether a batch of so many samples has one product in all, so that each is run by itself.

        One product for a whole batch is too few: it is the square of a sum with random signs.
        """
        return not self._errors.splits and rows > 1

    def measure(self, feed: FeedDict, labels: Ints | None, first: int, effects: EffectMeter) -> LocalMeter:
        """Measures one batch.

        Args:
            feed: The batch.
            labels: Class indices of the batch's samples, or None.
            first: How many samples come before the batch.
            effects: Where the effects are added.

        Returns:
            The errors at every layer, measured with the first samples of the data.

        Raises:
            CalibrationDataError: ONNX Runtime fails on the batch, or gradients are not finite.
        """
        self._adapt(feed)
        whole, rows = feed, batch_rows(feed) or 1
        if self._mixes(rows):
            local = LocalMeter(self._names)
            for row in range(rows):
                one = slice(row, row + 1)
                label = None if labels is None else labels[one]
                local.merge(self.measure(_taken(feed, one), label, first + row, effects))
            return local
        local = self._first_errors(feed, first)
        self._open(feed)
        times = _TIMES_WITHOUT_GRADIENTS if self._runs_at_once > 1 else 1
        parts = self._parts(rows, times * self._errors.samples_per_run)
        assert self._int8 is not None
        int8 = self._outputs(self._int8, feed, parts)
        reference = None if self._float is None else self._outputs(self._float, feed, parts)
        judged = self._judged(first, rows, effects)
        directions = self._directions(int8, first, effects.scales)
        if self._errors.splits:
            for array in directions[0].values():
                array[judged] = 0
        drawn, own_labels = None, labels
        if reference is not None:
            noise = effects.noise_of_samples(self._network.split(int8), self._network.split(reference))
            drawn = draw(noise, judged, self._share, np.random.default_rng((1, first)))
            feed, judged = _taken(feed, drawn.rows), judged[drawn.rows]
            directions = [_taken(direction, drawn.rows) for direction in directions]
            own_labels = None if labels is None else labels[drawn.rows]
        found = self._responses(feed, directions, judged)
        if not np.isfinite(found.products).all():
            raise CalibrationDataError(
                f"what layers cost cannot be predicted for the batch from sample {first} on: the network has "
                "an infinite slope there, as where it divides by zero; leave such samples out, or give them "
                "first, so that every layer is run by itself"
            )
        if reference is None:
            reference = found.reference
        self._add(effects, found, reference, drawn, judged, own_labels)
        effects.add(ALL, self._network.split(int8), self._network.split(reference), labels, first)
        for name, session in self._alone.items():
            outputs = self._outputs(session, whole, parts)
            wanted = self._network.split(reference)
            effects.add((ONLY, name), self._network.split(outputs), wanted, labels, first)
        return local

    def _judged(self, first: int, rows: int, effects: EffectMeter) -> Flags:
        """Which samples show whether their class stays, bool of shape (rows,)."""
        if not (self._errors.has_margins and effects.classes):
            return np.zeros(rows, bool)
        per_class = _PER_CLASS if self._float is None else _PER_CLASS_DRAWN
        judged: Flags = np.arange(first, first + rows) % per_class == 0
        return judged

    def _outputs(self, session: ModelSession, feed: FeedDict, parts: Sequence[slice]) -> Tensors:
        """A network's outputs for a batch, which is run in parts."""
        names = session.output_names
        return joined(
            self._each(lambda part: dict(zip(names, session.run(_taken(feed, part)), strict=True)), parts)
        )

    def _responses(
        self,
        feed: FeedDict,
        directions: Sequence[Tensors],
        judged: Flags,
    ) -> Responses:
        """What the errors of layers do to the outputs, for some samples, which are run in parts."""
        parts = self._parts(batch_rows(feed) or 1, self._errors.samples_per_run)
        found = self._each(
            lambda part: self._errors.run(
                _taken(feed, part),
                [_taken(direction, part) for direction in directions],
                judged[part],
            ),
            parts,
        )
        products = np.concatenate([responses.products for responses in found], axis=2)
        return Responses(joined([responses.reference for responses in found]), products)

    def _each(self, work: Callable[[slice], _Result], parts: Sequence[slice]) -> list[_Result]:
        """Does the same with every part of a batch, with several at once where that is allowed."""
        if self._runs_at_once == 1:
            return [work(part) for part in parts]
        with ThreadPoolExecutor(self._runs_at_once, "trtint8-measure") as pool:
            return list(pool.map(work, parts))

    def _add(
        self,
        effects: EffectMeter,
        found: Responses,
        reference: Tensors,
        drawn: Draw | None,
        judged: Flags,
        labels: Ints | None,
    ) -> None:
        """Adds what the drawn samples show; ``reference`` are the outputs for all samples of the batch."""
        predicted = [index for index, name in enumerate(self._names) if name not in self._alone]
        variants = [(ONLY, self._names[index]) for index in predicted]
        products = found.products[:, predicted]
        noise = np.square(products)
        if not self._errors.splits:
            effects.add_noise(variants, noise.mean(axis=0), self._network.split(reference))
            return
        # Where the first direction is a margin, the others alone show the noise.
        if self._errors.directions > 1:
            power = np.where(judged, noise[1:].mean(axis=0), noise.mean(axis=0))
            effects.add_noise(variants, power, self._network.split(reference), drawn)
        elif not judged.all():
            others = {name: array[~judged] for name, array in reference.items()}
            effects.add_noise(variants, noise[0][:, ~judged], self._network.split(others))
        if judged.any():
            scores = next(iter(found.reference.values()))[judged]
            own_labels = None if labels is None else labels[judged]
            effects.add_classes(variants, scores, products[0][:, judged], own_labels)

    def _first_errors(self, feed: FeedDict, first: int) -> LocalMeter:
        """The errors at every layer where the batch has some of the first samples of the data; else none."""
        if first >= _LOCAL_SAMPLES:
            return LocalMeter(self._names)
        if first or self._local is None:
            return self._measure_local(feed, _LOCAL_SAMPLES - first)[1]
        (_, meter), self._local = self._local, None
        return meter

    def _measure_local(self, feed: FeedDict, most: int) -> tuple[Tensors, LocalMeter]:
        """The errors at every layer for the first samples of a batch, and the float network's outputs.

        The session, which holds all weights twice, is closed at once.
        """
        network = LocalNetwork(self._graph_model, self._quantizer, self._network, threads=self._threads)
        meter = LocalMeter(self._names)
        references = []
        for part in self._parts(min(batch_rows(feed) or 1, most), self._errors.samples_per_run):
            taken = _taken(feed, part)
            reference, errors = network.measure(taken)
            meter.merge(errors)
            # What a session returns lies in its memory and keeps all of it, also when the session is closed.
            references.append({name: array.copy() for name, array in reference.items()})
        return joined(references), meter

    def _directions(self, outputs: Tensors, first: int, scales: Mapping[str, float]) -> list[Tensors]:
        """Random directions divided by the outputs' scales, the same wherever the batch is run."""
        random = np.random.default_rng((0, first))
        shapes = {name: outputs[name].shape for name in self._errors.directed}
        directions = [
            {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
            for _ in range(self._errors.directions)
        ]
        for part in self._network.parts:
            if part.output in shapes:
                drawn = draw_directions(part.of(outputs[part.output]), len(directions), random)
                drawn /= np.float32(scales[part.name])
                for direction, own in zip(directions, drawn, strict=True):
                    part.of(direction[part.output])[...] = own
        return directions

    def _parts(self, rows: int, size: int) -> list[slice]:
        """The first rows of a batch in parts of at most some samples; all of it where it is not cut."""
        if not self._errors.splits:
            return [slice(None)]
        return even_parts(rows, size * self._runs_at_once, self._runs_at_once)


def _taken(arrays: FeedDict, part: slice | Ints) -> Tensors:
    """Some rows of arrays."""
    whole = isinstance(part, slice) and part == slice(None)
    return arrays if whole else {name: array[part] for name, array in arrays.items()}


#: The largest rows of values whose principal axes are computed, and from how many rows; more take long.
_MOST_VALUES, _MOST_ROWS = 4096, 64


def draw_directions(values: Array, count: int, random: np.random.Generator) -> Float32s:
    """Draws directions for an estimate of the noise in an output.

    The mean of (v e)^2 over directions v is the square of the length of an error e, where the components of v
    are random signs, in any basis (Hutchinson's estimator of a trace). How far single squares lie from the
    mean depends on how much the components of the errors have in common in this basis. The errors of a
    network lie about where its outputs lie. So rows of up to 4,096 values, such as class scores, get signs
    along their principal axes, along which they have nothing in common: the sum of (v y)^2 over the rows y is
    then the same for every v. Other outputs get a sign for every value.

    The signs of a sample's directions are those of the first one times the rows of a Hadamard matrix, of
    which each component has one column, in turn. What two components with different columns have in common
    then adds nothing to the mean over the directions. Of independent signs, it would add something random.

    Args:
        values: The output, or a part of it, for a batch.
        count: How many directions: 1, 2, 4 or another power of two.
        random: Where the signs come from.

    Returns:
        float32 of shape (count, *values.shape).
    """
    signs = _opposed(random_signs(values.shape, random), count)
    if values.ndim != 2 or values.shape[1] > _MOST_VALUES or not np.isfinite(values).all():
        return signs
    rows = values[:_MOST_ROWS].astype(np.float64)
    axes = np.linalg.svd(rows, full_matrices=False)[2].astype(np.float32)
    along = _opposed(random_signs((len(values), len(axes)), random), count)
    # With fewer rows than columns there are directions in which no row lies: there, the signs stay.
    return np.asarray(signs + (along - signs @ axes.T) @ axes, np.float32)


def _opposed(signs: Float32s, count: int) -> Float32s:
    """As many arrays of signs, each the given one times a row of a Hadamard matrix, over and over.

    Args:
        signs: Any signs, float32.
        count: How many, a power of two.

    Returns:
        float32 of shape (count, *signs.shape).
    """
    # Sylvester's matrix: -1 where row and column have an odd number of ones in common.
    matrix = [[(-1) ** (row & column).bit_count() for column in range(count)] for row in range(count)]
    return np.stack([signs * np.resize(np.array(row, np.float32), signs.shape) for row in matrix])


#: How far the values of single samples may lie from those of a batch, as a share of the largest of them: ONNX
#: Runtime adds up in another order.
_TOLERANCE = 1e-3


def may_run_one_by_one(graph_model: ir.Model, feed: FeedDict, threads: int | None) -> bool:
    """Whether a network gives the same for two samples as for each of them by itself.

    Args:
        graph_model: From :func:`trtint8.models.model.prepare`; not changed.
        feed: A batch of two samples or more, along the first axis of all inputs.
        threads: Threads per operator; ONNX Runtime's choice where None.

    Returns:
        True where it leaves the number of samples open and every output for both samples consists of those
        for each, along any axis, which may hold more than samples, such as the steps of all sequences.

    Raises:
        CalibrationDataError: ONNX Runtime fails on the samples.
    """
    if any((declared_sizes(value) or (None,))[0] is not None for value in graph_model.graph.inputs):
        return False
    session = open_graph_model(graph_model, threads=threads)
    parts = (slice(0, 2), slice(0, 1), slice(1, 2))
    runs = [session.run({name: array[part] for name, array in feed.items()}) for part in parts]
    return all(_consists_of(both, first, second) for both, first, second in zip(*runs, strict=True))


def _consists_of(both: NDArray[np.generic], first: NDArray[np.generic], second: NDArray[np.generic]) -> bool:
    """Whether an array is two others of one shape, one behind the other along one of the axes."""
    if first.shape != second.shape:
        return False
    joined = (np.concatenate([first, second], axis) for axis in range(first.ndim))
    atol = _TOLERANCE * float(np.abs(both).max(initial=0))
    return any(one.shape == both.shape and np.allclose(one, both, rtol=0, atol=atol) for one in joined)
