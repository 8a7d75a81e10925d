"""A flow on this machine: its processes, its ZooKeeper, its directory, and what a terminal shows of it."""
