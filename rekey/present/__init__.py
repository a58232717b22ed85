"""HTML pages, SVG plots and text for the terminal."""
