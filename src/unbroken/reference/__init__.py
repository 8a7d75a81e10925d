"""Reference pages that are made from the code: ``python -m unbroken.reference`` writes them into ``docs/``."""
