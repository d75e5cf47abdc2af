"""The same tasks for each system."""
