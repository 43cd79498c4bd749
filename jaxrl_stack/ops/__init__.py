"""Maths on arrays: functions from arrays to arrays, without configs, modules or environments."""
