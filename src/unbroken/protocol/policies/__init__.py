"""Everything beyond active replication with pulses: a package for each policy, behind one interface."""
