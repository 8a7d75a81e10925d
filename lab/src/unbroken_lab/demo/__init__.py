"""The demonstration: a network-monitoring dataflow that loses a node while its results are checked."""
