"""Text of a record as a terminal may show it."""


def literal(text: str) -> str:
    """Show control characters as escapes: names in a record must not steer the terminal."""
    return "".join(
        letter
        if letter.isprintable()
        else letter.encode("unicode_escape", "surrogatepass").decode()
        for letter in text
    )
