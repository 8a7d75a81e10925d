"""Files in a directory as a source, and sinks that write them."""
