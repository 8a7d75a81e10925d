"""The rows of a test on their way through a flow: inputs, the script of their cuts, sources and sinks of the test."""
