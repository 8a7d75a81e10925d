"""Rows that programs push over HTTP."""
