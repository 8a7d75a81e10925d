"""A flow on processes of this machine that is fed, observed, struck by faults, and waited for."""
