"""A node's server in a process of its own, to be stopped by a signal; prints its address."""

from __future__ import annotations

import sys

from kit.links import Service, serve

server = serve(Service())
print(server.address, flush=True)
sys.stdin.read()  # ends when the test closes it or is gone
server.close()
