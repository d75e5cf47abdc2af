# Generated from ../_async/__init__.py by `make generate`: change that file.
"""The blocking client, generated from these modules by `make generate`."""
