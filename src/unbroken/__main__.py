"""``python -m unbroken``."""

from unbroken.cli import main

main()
