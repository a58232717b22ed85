"""The client as the service's SDK has it."""
