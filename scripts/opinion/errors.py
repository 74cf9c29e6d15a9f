"""The two ways in which a file of saved tensors can be refused."""


class FormatError(Exception):
    """The file cannot be judged: malformed, incomplete, or of a kind that is not covered."""


class Disagreement(Exception):
    """The file can be judged and is wrong; the message says where and by how much."""
