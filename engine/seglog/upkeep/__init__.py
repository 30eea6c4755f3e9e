"""What examines or rewrites closed files."""
