"""What crosses a wire, for both ends: calls, shapes, codecs."""
