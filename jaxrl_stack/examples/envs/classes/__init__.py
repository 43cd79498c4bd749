"""Small gymnasium environments under RLlib's import paths.

Each takes its settings as one dict, the ``env_config``. All chance comes from ``reset(seed=...)``, unless a class says
otherwise.
"""
