"""Parts of ``bench_calibration.py``."""
