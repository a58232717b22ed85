"""Pages for people: one HTML file each, with plots, that need nothing from outside."""
