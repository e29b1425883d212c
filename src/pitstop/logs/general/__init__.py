"""The general reader: training records in lines of no known format."""
