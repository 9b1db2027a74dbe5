"""The families of `perf/counts.py`: each adds its options, and reports tables and sentences."""
