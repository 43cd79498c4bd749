"""Tests. A package of its own name, so that none that another distribution installs comes before it."""
