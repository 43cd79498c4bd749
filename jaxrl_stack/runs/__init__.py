"""What a run leaves behind, and how it is looked at: its table of results, curves, figures, reports."""
