"""The write protocol, and the restricted rows that runners, workers and clients of a migration share."""
