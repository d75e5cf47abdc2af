"""The client for event loops."""
