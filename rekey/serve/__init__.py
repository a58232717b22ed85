"""The progress of migrations over HTTP: a live page, JSON, events, metrics, health. Read only."""
