"""The client for event loops. `_sync` is generated from these modules by `make generate`."""
