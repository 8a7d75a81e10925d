"""The experiments of Rosinosky et al.: micro-benchmarks, faults, and the monitoring of a cloud service."""
