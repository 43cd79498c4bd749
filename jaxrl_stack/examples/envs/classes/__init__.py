"""Small gymnasium environments by RLlib's names, one or a few per file.

Each takes its settings as one dict, the ``env_config``. All chance comes from ``reset(seed=...)``, unless a class says
otherwise.
"""
