"""The decisions of Unbroken: events in, instructions out.

Nothing here opens a socket, starts a thread, reads a clock, draws a random number or knows Spark. Each
class states its invariant and has a ``check()`` that asserts it; the same objects run in production, in
property tests and in simulation.
"""
