"""The application's writes, in five steps: route, intent, authority, replicas, finish."""
