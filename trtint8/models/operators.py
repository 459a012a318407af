"""Operators of one kind, by which values are followed through a graph."""

#: Operators that read the shape of a tensor and none of its values.
SHAPE_READERS = frozenset({"Shape", "Size"})
