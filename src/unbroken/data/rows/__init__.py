"""Rows from bytes of others: JSON lines, CSV, Arrow and Parquet, within a budget and without exceptions."""
