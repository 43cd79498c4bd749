"""Contenders that run in processes, and possibly in virtual environments, of their own."""
