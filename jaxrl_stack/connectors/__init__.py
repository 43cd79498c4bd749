"""Connectors transform data between environment, module and learner; pipelines chain them. Connectors that are pure
functions can be compiled.
"""
