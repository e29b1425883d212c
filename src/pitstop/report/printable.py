"""Text from elsewhere as a terminal may show it."""


def literal(text: str) -> str:
    """Show control characters as escapes: names in a record must not steer the terminal."""
    return "".join(
        letter
        if letter.isprintable()
        else letter.encode("unicode_escape", "surrogatepass").decode()
        for letter in text
    )


def literal_lines(text: str) -> str:
    """Do the same and keep the lines: for whole messages, which may name a file of any name."""
    if all(letter.isprintable() or letter in "\n\t" for letter in text):
        return text
    return "\n".join("\t".join(map(literal, line.split("\t"))) for line in text.split("\n"))
