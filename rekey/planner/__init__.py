"""Plans: what a migration will do, how long it takes and what will refuse, before anything is written."""
