"""What connects the algorithms to hyperparameter search. Importing it does not import Ray."""
