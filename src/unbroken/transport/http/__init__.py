"""HTTP of this process: one server for applications, with deadlines for connections."""
