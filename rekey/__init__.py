"""Online, verified, reversible key changes for Azure Table Storage."""
