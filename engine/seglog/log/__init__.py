"""One partition directory."""
