"""Where a migration stands: read, judged, told."""
