"""The rules, one file a family, and what they advise."""
