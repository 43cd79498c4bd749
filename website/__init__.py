"""The documentation site, built from docs/ and from the code: ``python -m website``."""
