"""Changes made to somebody's training from outside, to measure what each would gain."""
