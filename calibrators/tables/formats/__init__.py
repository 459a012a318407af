"""One file per table format: bytes in, ranges out, and back. None of them uses CalibrationTable."""
