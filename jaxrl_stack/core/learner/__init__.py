"""Learners: one compiled update from a train batch to the next learner state."""
