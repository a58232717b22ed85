"""The phases, one file each, with one lifecycle: gate, run, undo."""
