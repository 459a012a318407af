INTERFACE: int

def count_values(
    values: int, size: int, limit: int, factor: float, bins: int, lanes: int, counts: int, octaves: int
) -> tuple[int, int, int, tuple[int, int]]: ...
def count_values_of_sides(
    values: int,
    size: int,
    limits: tuple[int, int],
    factors: tuple[float, float],
    bins: int,
    lanes: int,
    counts: int,
    octaves: int,
) -> tuple[int, int, tuple[int, int], tuple[int, int]]: ...
