"""What ``stoker parity`` compares, and how it explains a difference."""
