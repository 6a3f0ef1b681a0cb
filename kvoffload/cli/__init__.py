"""Command line tools. They need the extra: pip install 'kvoffload[cli]'."""
