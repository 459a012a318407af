"""Parts of ``bench_networks.py`` and ``bench_tools.py``."""
