"""User hooks: methods of classes, or functions, called at events such as the end of an episode."""
