"""Evidence: what an auditor can check without trusting whoever ran the migration's machine."""
