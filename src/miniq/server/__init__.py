"""The servers: bytes in, one broker call, bytes out. The queue rules are in `broker`."""
