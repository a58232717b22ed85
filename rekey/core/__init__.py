"""What everything is built of: no word of tables or migrations."""
