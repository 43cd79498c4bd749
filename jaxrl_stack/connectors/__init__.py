"""Connectors: transforms of data between environment, module and learner, chained to pipelines; pure functions that can
be compiled.
"""
