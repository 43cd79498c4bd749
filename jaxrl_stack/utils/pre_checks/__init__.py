"""Checks of what users bring, before anything is trained with it."""
