"""The async client. `_sync` is generated from these modules by `make generate`."""
