"""Reference pages that are made from the code: ``python -m unbroken_lab.docsgen`` writes them into ``docs/``."""
