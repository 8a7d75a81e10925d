"""Seeded fault campaigns: real processes are killed, frozen and wiped while every result is checked."""
