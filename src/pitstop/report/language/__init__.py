"""What is said, in another language than English."""
