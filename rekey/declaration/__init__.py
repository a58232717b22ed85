"""What operators declare: keys, properties, casts; and what they give for a row."""
