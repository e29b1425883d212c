"""Video deblurring with VRT."""
