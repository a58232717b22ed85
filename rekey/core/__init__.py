"""Basic modules for all packages of rekey; they import none of those."""
