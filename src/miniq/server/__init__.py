"""Doors to the broker: bytes in, one broker call, bytes out. No queue rules here."""
