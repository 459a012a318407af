"""The search with few engines, on networks of made-up times: each layer has its own, and so have borders."""

import itertools
import json
import random
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from calibrators.errors import BuildError
from trtint8.tuning.journal import OutOfTimeError, TimeLimit
from trtint8.tuning.speed import search_speed
from trtint8.tuning.stopwatch import Timing


@dataclass
class Made:
    """Times of a chain of layers, in ms."""

    fp16: list[float]
    int8: list[float]
    borders: list[float]
    interval: float = 0.001
    layers: bool = True
    fails: tuple[frozenset[str], ...] = ()
    source: str = "measured here"
    gpu: str = "A10"
    asked: list[frozenset[str]] = field(default_factory=list)

    @property
    def names(self):
        return [f"layer{index}" for index in range(len(self.fp16))]

    def seconds(self, kept):
        half = [name in kept for name in self.names]
        own = [
            one if inside else other for inside, one, other in zip(half, self.fp16, self.int8, strict=True)
        ]
        crossed = [
            cost
            for cost, (one, other) in zip(self.borders, itertools.pairwise(half), strict=True)
            if one != other
        ]
        return own, sum(own) + sum(crossed)

    def time(self, choices):
        self.asked += choices
        return [None if kept in self.fails else self.timing(kept) for kept in choices]

    def timing(self, kept):
        own, total = self.seconds(kept)
        layers = dict(zip(self.names, own, strict=True)) if self.layers else {}
        return Timing(total, total * (1 - self.interval), total * (1 + self.interval), layers)

    def search(self, **options):
        groups = [(name,) for name in self.names]
        return search_speed(groups, self, options.pop("limit", TimeLimit()), **options)


def made(seed, **options):
    rng = random.Random(seed)
    fp16 = [rng.lognormvariate(0, 1) for _ in range(rng.randrange(3, 11))]
    int8 = [time * rng.uniform(0.45, 1.4) for time in fp16]
    borders = [rng.uniform(0, 0.3) * min(pair) for pair in itertools.pairwise(fp16)]
    return Made(fp16, int8, borders, **options)


def best_of_all(network):
    choices = itertools.chain.from_iterable(
        itertools.combinations(network.names, size) for size in range(len(network.names) + 1)
    )
    return min(network.seconds(frozenset(kept))[1] for kept in choices)


def test_few_engines_find_nearly_the_fastest():
    networks = [made(seed) for seed in range(60)]
    plans = [network.search() for network in networks]
    reached = [best_of_all(network) / plan.seconds for network, plan in zip(networks, plans, strict=True)]
    assert sum(share >= 0.98 for share in reached) >= 57 and min(reached) > 0.95
    assert all(plan.seconds <= plan.fp16_seconds for plan in plans)
    assert max(len(network.asked) for network in networks) <= 12
    assert all(len(network.asked) == len(set(network.asked)) for network in networks)
    assert plans == [made(seed).search() for seed in range(60)]


class Recorded:
    """The estimates of all choices of a network's groups, each compiled by TensorRT for RTX for an A10.

    ``seconds`` in the file stand by number: bit i says that group i is in FP16. ``layers`` are the times of
    the layers in the engines with all of them in one type.
    """

    source, gpu = "measured here", "A10"

    def __init__(self, name, interval):
        found = json.loads((Path(__file__).parent / "recorded" / f"{name}.json").read_text())
        self.groups, self.proposed, self.seconds = found["groups"], found["proposed"], found["seconds"]
        self._layers, self._interval, self.asked = found["layers"], interval, []

    def time(self, choices):
        self.asked += choices
        return [self._timing(kept) for kept in choices]

    def _timing(self, kept):
        seconds = self.seconds[
            sum(1 << index for index, group in enumerate(self.groups) if kept.issuperset(group))
        ]
        names = itertools.chain.from_iterable(self.groups)
        layers = {name: self._layers["fp16" if name in kept else "int8"][name] for name in names}
        return Timing(seconds, seconds * (1 - self._interval), seconds * (1 + self._interval), layers)


@pytest.mark.parametrize("interval", [0.0005, 0.005])
@pytest.mark.parametrize("name", ["vit", "vit_b4", "bert2", "resnet20"])
def test_recorded_engines_of_networks_are_searched_nearly_as_well_as_by_trying_all(name, interval):
    network = Recorded(name, interval)
    assert len(network.seconds) == 2 ** len(network.groups)
    for proposed in (network.proposed, ()):
        plan = search_speed(network.groups, network, TimeLimit(), proposed=proposed)
        assert min(network.seconds) / plan.seconds >= 0.98 and plan.seconds <= plan.fp16_seconds
        assert len(plan.trials) <= 12


def test_the_plan_says_what_was_timed():
    network = Made([2.0, 1.0], [1.0, 3.0], [0.1])
    seen = []
    plan = network.search(on_trial=seen.append)
    assert (plan.gpu, plan.source, plan.keep_float) == ("A10", "measured here", ("layer1",))
    assert plan.seconds == pytest.approx(2.1)
    assert (plan.fp16_seconds, plan.int8_seconds, plan.complete) == (3.0, 4.0, True)
    assert tuple(seen) == plan.trials
    trial = min(plan.trials, key=lambda one: one.seconds)
    assert (trial.taken, trial.in_float) == (True, 1) and trial.least < trial.seconds < trial.most


@pytest.mark.parametrize(
    "network",
    [
        Made([1.0, 1.0], [0.99, 1.0], [0.0], interval=0.02),
        Made([1.0, 1.0], [2.0, 2.0], [0.0]),
        Made([1.0, 1.0], [0.5, 0.5], [0.0], fails=(frozenset(), *(frozenset({f"layer{i}"}) for i in (0, 1)))),
    ],
    ids=["undecided", "slower", "no engine in INT8"],
)
def test_it_stays_in_fp16(network):
    plan = network.search()
    assert plan.keep_float == ("layer0", "layer1")
    assert plan.seconds == plan.fp16_seconds == 2.0


def test_without_times_of_layers_groups_are_changed_one_by_one():
    plan = Made([2.0, 1.0, 4.0], [1.0, 3.0, 2.0], [0.1, 0.1], layers=False).search()
    assert plan.keep_float == ("layer1",)


def test_a_proposal_is_timed_too():
    network = Made([1.0] * 4, [0.5, 2.0, 0.5, 2.0], [0.0] * 3)
    network.search(proposed=["layer1", "elsewhere"])
    assert frozenset({"layer1"}) in network.asked


def test_a_choice_that_cannot_be_built_drops_out():
    network = Made([2.0, 1.0, 1.0], [1.0, 3.0, 0.8], [0.0, 0.0], fails=(frozenset({"layer1"}),))
    plan = network.search()
    assert plan.seconds <= min(
        time for kept in network.asked if (time := network.seconds(kept)[1]) and kept not in network.fails
    )


def test_the_engine_in_fp16_is_needed():
    network = Made([1.0], [0.5], [], fails=(frozenset({"layer0"}),))
    with pytest.raises(BuildError, match="A10"):
        network.search()


def test_the_time_is_over():
    class Limit:
        def check(self):
            raise OutOfTimeError

    network = Made([2.0, 1.0], [1.0, 1.2], [0.1])
    plan = network.search(limit=Limit())
    assert (plan.complete, plan.keep_float, len(network.asked)) == (False, (), 2)
