"""``stoker plan`` and ``stoker index``: what a run will be like, before any pixel is read."""
