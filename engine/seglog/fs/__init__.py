"""The only room that touches the operating system to change something."""
