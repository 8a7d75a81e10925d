"""The simulation study of Hwang et al. (2003), on the protocol that Unbroken runs."""
