"""The application's way of writing: route, intent, authority, replicas, finish."""
