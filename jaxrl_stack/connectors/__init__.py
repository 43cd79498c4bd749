"""Transforms of data between environment, module and learner: pure functions, chained to pipelines."""
