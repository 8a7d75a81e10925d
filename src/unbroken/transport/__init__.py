"""Units, messages and questions between processes, over Arrow Flight."""
