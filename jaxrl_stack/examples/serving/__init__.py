"""Example servers of trained policies: over HTTP with the standard library, and with Ray Serve."""
