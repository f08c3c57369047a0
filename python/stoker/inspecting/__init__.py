"""What ``stoker inspect`` shows, and how."""
