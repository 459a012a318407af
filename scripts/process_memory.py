"""The memory of the process that asks."""

from pathlib import Path


def peak_mib() -> float:
    """The peak of resident memory, in MiB. ``ru_maxrss`` would begin with that of the parent."""
    return _status_mib("VmHWM")


def resident_mib() -> float:
    """The resident memory, in MiB."""
    return _status_mib("VmRSS")


def _status_mib(field: str) -> float:
    status = Path("/proc/self/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith(field)).split()[1]) / 1024
