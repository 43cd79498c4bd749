"""User hooks: classes with methods, or functions, that are called when something happens."""
