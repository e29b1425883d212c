"""Where torch and the interpreter are observed: what is replaced, and what that tells."""
