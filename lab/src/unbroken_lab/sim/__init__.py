"""A simulator that runs the production protocol objects on virtual time, with simulated machines, links and faults."""
