"""The node side."""
