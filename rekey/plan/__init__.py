"""Plans: what a migration will do, how long it takes, what it costs, and what is wrong with the keys."""
