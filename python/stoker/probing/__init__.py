"""How fast storage answers, what limits it, and what a training step costs: `stoker probe`."""
