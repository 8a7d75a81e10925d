"""Traces: how single pulses went through a flow, and how it dealt with failures, for OpenTelemetry.

What happens to a node (`unbroken.protocol.events`) and what it does about it (`unbroken.protocol.instructions`) is all
that spans are made of, on a thread of their own. Nodes send each other nothing for it: what names a trace and a span
follows from the run, the pulse and the unit, which every node knows.
"""
