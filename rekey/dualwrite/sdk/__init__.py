"""The clients of application teams: the SDK's `TableClient`, with writes taken out of its pipeline."""
