"""The client in the form of the service's SDK: its `TableClient`, synchronous and asynchronous."""
