"""Sources and sinks: how rows get into a dataflow and results out of it."""
