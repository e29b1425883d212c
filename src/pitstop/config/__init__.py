"""Every setting: typed, bounded, documented, loaded and checked."""
