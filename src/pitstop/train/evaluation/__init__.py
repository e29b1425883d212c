"""A trained model over the evaluation data: its quality, its outputs, pictures of them."""
