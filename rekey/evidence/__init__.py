"""Evidence: bundles that an auditor can check without trusting the machine that ran the migration."""
