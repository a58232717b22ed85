"""Erasing what the mapping knows: of persons or things on request, of months when their time is over."""
