"""The ingress of a node: its copy of the ingress log, and the sources read as the log says."""
