"""Connectors: transforms of data between environment, module and learner. A pipeline runs several connectors one after
the other. Connectors that are pure functions can be compiled.
"""
