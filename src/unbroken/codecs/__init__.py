"""Bytes of typed values: derived from the types, so that a field that is added is written, read and tested."""
