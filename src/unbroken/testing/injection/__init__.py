"""How faults are done to real processes: the executor, and what disks, clocks and links need for it."""
