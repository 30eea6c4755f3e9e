from typing_extensions import disjoint_base

@disjoint_base
class Unclosed:
    _is_unclosed: bool
