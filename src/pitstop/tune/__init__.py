"""The fastest settings that fit: what may be changed, what to try next, and what each gained."""
