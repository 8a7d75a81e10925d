"""A node of Unbroken for spark-submit: ``spark-submit [options of Spark] node.py [options of unbroken node]``."""

from __future__ import annotations

import sys

from unbroken.cli import cli

if __name__ == "__main__":
    cli(args=["node", *sys.argv[1:]], prog_name="unbroken")
