"""What ``stoker check`` does and prints."""
