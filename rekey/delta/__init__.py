"""Capture "delta": following the source without a client in the application."""
