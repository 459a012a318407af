"""The stages: each module has a ``run`` that takes a :class:`gpu_checks.checking.Check`."""
