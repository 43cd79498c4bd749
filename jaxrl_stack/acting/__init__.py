"""Acting, and what is recorded of it: the one step of a policy, on the host and inside the rollout on the device."""
