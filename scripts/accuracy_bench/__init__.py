"""Parts of ``bench_accuracy.py``."""
