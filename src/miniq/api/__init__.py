"""The API as both ends share it: operations, the shapes of requests and replies, encodings."""
