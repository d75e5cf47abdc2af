"""The worker loop: receives, runs handlers, keeps leases alive."""
