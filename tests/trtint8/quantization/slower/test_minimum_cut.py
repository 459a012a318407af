"""The cheapest choice, beside trying every one."""

import itertools
import random

import pytest

from trtint8.quantization.slower.minimum_cut import BinaryChoice


def test_one_variable_takes_the_cheaper_value():
    choice = BinaryChoice()
    choice.add_cost("a", true=3, false=5)
    choice.add_cost("b", true=5, false=3)
    assert choice.solve() == {"a"}


def test_equally_cheap_variables_are_false():
    choice = BinaryChoice()
    choice.add_cost("a", true=4, false=4)
    assert choice.solve() == frozenset()


def test_neighbours_gain_only_together():
    choice = BinaryChoice()
    for name in "abc":
        choice.add_cost(name, true=1, false=2)
    for pair in itertools.permutations("abc", 2):
        choice.add_pair(*pair, 10)
    choice.add_cost("c", true=4)
    assert choice.solve() == frozenset()
    choice = BinaryChoice()
    for name in "abc":
        choice.add_cost(name, true=1, false=3)
    for pair in itertools.permutations("abc", 2):
        choice.add_pair(*pair, 10)
    choice.add_cost("c", true=4)
    assert choice.solve() == {"a", "b", "c"}


@pytest.mark.parametrize("seed", range(20))
def test_random_costs(seed):
    chance = random.Random(seed)
    names = "abcdefg"
    costs = {name: (chance.randrange(20), chance.randrange(20)) for name in names}
    pairs = {pair: chance.randrange(12) for pair in itertools.permutations(names, 2) if chance.random() < 0.4}
    choice = BinaryChoice()
    for name, (true, false) in costs.items():
        choice.add_cost(name, true=true, false=false)
    for pair, cost in pairs.items():
        choice.add_pair(*pair, cost)

    def total(chosen):
        alone = sum(true if name in chosen else false for name, (true, false) in costs.items())
        return alone + sum(cost for (a, b), cost in pairs.items() if a in chosen and b not in chosen)

    subsets = [
        set(subset) for size in range(len(names) + 1) for subset in itertools.combinations(names, size)
    ]
    least = min(map(total, subsets))
    solved = choice.solve()
    assert total(solved) == least
    assert len(solved) == min(len(subset) for subset in subsets if total(subset) == least)


def test_the_edges_of_a_vertex_are_listed_once_for_all_paths():
    class Counted(dict):
        lists = 0

        def __iter__(self):
            Counted.lists += 1
            return super().__iter__()

    choice = BinaryChoice()
    for number in range(500):
        choice.add_cost(number, true=2, false=number % 3 + 1)
    choice._capacities = [Counted(edges) for edges in choice._capacities]
    assert choice.solve() == {number for number in range(500) if number % 3 == 2}
    assert Counted.lists == 502  # the variables, the source and the sink
