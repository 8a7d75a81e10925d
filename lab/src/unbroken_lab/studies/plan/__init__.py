"""Which way to keep a flow available suits it: predictions from a calibration and simulated runs."""
