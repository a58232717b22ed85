"""The dual-write client behind a socket: the Table service's REST protocol, for any language."""
