"""Transforms of data between environment, module and learner: pure functions that chain into pipelines."""
