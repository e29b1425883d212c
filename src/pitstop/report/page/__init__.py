"""The self-contained page: its sections, charts and templates."""
