"""What runners, workers and clients of a migration share."""
