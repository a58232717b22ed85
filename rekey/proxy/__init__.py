"""The dual-write client with a socket in front: the Table service's REST protocol, for any language."""
